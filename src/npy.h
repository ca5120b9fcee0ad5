/* npy.h: NumPy's .npy files, versions 1 to 3, of up to 4 dimensions: floats, as attention tensors come in, and the integers of captured tensors. */
#ifndef AG_NPY_H
#define AG_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* '<f2', '<f4', '<u2', '<i4', '<i8', '|u1', '|b1'; '<u2' carries bf16 bits, which NumPy has no name for */
typedef enum NpyType { NPY_F16, NPY_F32, NPY_U16, NPY_I32, NPY_I64, NPY_U8, NPY_BOOL } NpyType;

enum { NPY_RANK = 6, NPY_ERROR = 256 };

typedef struct Npy {
    NpyType type;
    int rank;
    int64_t dim[NPY_RANK];
    int64_t stride[NPY_RANK]; /* elements; C or Fortran order */
    size_t count;             /* elements */
    const uint8_t *data;      /* count elements, little-endian, unaligned; points into `owned` or the parsed bytes */
    void *owned;              /* npy_free frees it */
} Npy;

size_t npy_size(NpyType t);       /* bytes of an element */
const char *npy_descr(NpyType t); /* "<f2" */
/* Reads a file image.  false: err has one line, without the file's name. */
bool npy_parse(Npy *out, const void *bytes, size_t n, char err[NPY_ERROR]);
/* Reads a whole stream; *io: the failure is of the file system (or memory), not of the contents. */
bool npy_read(Npy *out, FILE *f, char err[NPY_ERROR], bool *io);
void npy_free(Npy *a);
/* Element `i` of the data in storage order; NPY_U16 is read as bf16. */
float npy_get(const Npy *a, size_t i);
int64_t npy_get_int(const Npy *a, size_t i); /* of the four types that are no floats */
bool npy_is_int(NpyType t);                  /* is it one of these? */
/* The header of a C-ordered array; returns its length, a multiple of 64, at most 192. */
size_t npy_header(char out[192], NpyType type, int rank, const int64_t *dim);

/* Storage types by bits; rounding is to nearest even. */
float npy_from_f16(uint16_t x);
float npy_from_bf16(uint16_t x);
uint16_t npy_to_f16(float x);
uint16_t npy_to_bf16(float x);
#endif
