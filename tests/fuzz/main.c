/* main.c: runs a fuzz target on files and folders given as arguments; for compilers without libFuzzer, and to repeat a finding. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run_file(const char *path) {
    static uint8_t data[1 << 20];
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return 1;
    }
    size_t n = fread(data, 1, sizeof data, f);
    fclose(f);
    uint8_t *exact = malloc(n ? n : 1); /* so that a sanitizer sees reads past the end */
    if (!exact) return 1;
    memcpy(exact, data, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    return 0;
}

static int run_path(const char *path) {
    DIR *dir = opendir(path);
    if (!dir) return run_file(path);
    int failed = 0;
    char name[4096];
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        failed |= run_file(name);
    }
    closedir(dir);
    return failed;
}

int main(int argc, char **argv) {
    int failed = 0;
    for (int i = 1; i < argc; i++) failed |= run_path(argv[i]);
    return failed;
}
