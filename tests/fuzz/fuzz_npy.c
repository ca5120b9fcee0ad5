/* Any bytes as a .npy file: parsed or refused with a message, and then every element can be read. */
#include <stdlib.h>

#include "npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Npy a;
    char err[NPY_ERROR] = "";
    volatile float sum = 0;
    if (!npy_parse(&a, data, size, err)) {
        if (!err[0]) abort();
        return 0;
    }
    for (size_t i = 0; i < a.count; i++) sum = sum + npy_get(&a, i);
    return 0;
}
