/* driver_mem.h: device memory for `attngen check`, which alone in the library needs any (driver_mem.c). */
#ifndef AG_DRIVER_MEM_H
#define AG_DRIVER_MEM_H

#include "jit.h"

typedef struct DeviceMemory DeviceMemory;
/* Opens libcuda and makes the primary context of device `ordinal` current in this thread until closed. */
attngen_status ag_memory_open(DeviceMemory **out, int ordinal, Err *e);
void ag_memory_close(DeviceMemory *m); /* frees what is left of its blocks */
/* Contents are undefined; 0 bytes give a valid address too. */
attngen_status ag_memory_alloc(DeviceMemory *m, uint64_t *address, size_t bytes, Err *e);
void ag_memory_free_all(DeviceMemory *m);
attngen_status ag_memory_upload(DeviceMemory *m, uint64_t to, const void *from, size_t bytes, Err *e);
attngen_status ag_memory_download(DeviceMemory *m, void *to, uint64_t from, size_t bytes, Err *e);
attngen_status ag_memory_sync(DeviceMemory *m, Err *e); /* waits for all launched work; its failure is reported here */
#endif
