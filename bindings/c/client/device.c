/* Memory of CUDA devices: the agent opens it by a handle of the driver. The driver is asked only where the program has loaded it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "client.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

/* Of cuda.h. */
enum { POINTER_CONTEXT = 1, POINTER_TYPE = 2, POINTER_MANAGED = 8, POINTER_ORDINAL = 9, DEVICE_MEMORY = 2, HANDLE = 64 };

extern unsigned long long loads(void);

/* The driver, NULL where the program has not loaded it. To ask the loader for what is not there takes long, so it is asked again only when it has loaded something. */
static void *driver(void)
{
	static _Atomic unsigned long long without;
	unsigned long long n = loads();
	if (n > 0 && n == without)
		return NULL;
	void *d = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	if (!d)
		without = n;
	return d;
}

/* The handle of the allocation at base, or what the driver says instead. */
static int get_handle(void *d, uint64_t context, uint64_t p, unsigned char *handle, uint64_t *base)
{
	int (*push)(uint64_t) = (int (*)(uint64_t))dlsym(d, "cuCtxPushCurrent_v2");
	int (*pop)(uint64_t *) = (int (*)(uint64_t *))dlsym(d, "cuCtxPopCurrent_v2");
	int (*range)(uint64_t *, size_t *, uint64_t) = (int (*)(uint64_t *, size_t *, uint64_t))dlsym(d, "cuMemGetAddressRange_v2");
	int (*get)(unsigned char *, uint64_t) = (int (*)(unsigned char *, uint64_t))dlsym(d, "cuIpcGetMemHandle");
	size_t size;
	int r;
	if (!push || !pop || !range || !get)
		return -1;
	if ((r = push(context)) != 0)
		return r;
	if ((r = range(base, &size, p)) == 0)
		r = get(handle, *base);
	pop(&context);
	return r;
}

/* Says what is at an address of a device. */
static int32_t describe(void *d, uint64_t p, device *to, penstock_error *out)
{
	int (*attribute)(void *, int, uint64_t) = (int (*)(void *, int, uint64_t))dlsym(d, "cuPointerGetAttribute");
	int (*get)(int *, int) = (int (*)(int *, int))dlsym(d, "cuDeviceGet");
	int (*bus)(char *, int, int) = (int (*)(char *, int, int))dlsym(d, "cuDeviceGetPCIBusId");
	uint32_t type = 0, managed = 0;
	int number, cu;
	uint64_t context, base;
	if (!attribute || attribute(&type, POINTER_TYPE, p) != 0 || type != DEVICE_MEMORY || (attribute(&managed, POINTER_MANAGED, p) == 0 && (managed & 0xff)))
		return PENSTOCK_OK; /* of the host */
	int r = attribute(&context, POINTER_CONTEXT, p);
	if (r == 0)
		r = get_handle(d, context, p, to->token, &base);
	if (r == 0 && (!get || !bus || attribute(&number, POINTER_ORDINAL, p) != 0 || get(&cu, number) != 0 || bus(to->bus, sizeof to->bus, cu) != 0))
		r = -1;
	if (r != 0)
		return fail(out, PENSTOCK_MISSING, "CUDA's driver gives other processes, such as the agent, no memory like that at %#llx (result %d of cuIpcGetMemHandle and what it needs): "
			"it has to be of cudaMalloc or cuMemAlloc, not mapped (expandable_segments) and not of a pool", (unsigned long long)p, r);
	uint64_t offset = p - base;
	memcpy(to->token + HANDLE, &offset, sizeof offset);
	to->is = 1;
	return PENSTOCK_OK;
}

int32_t device_of(const void *memory, uint64_t size, device *to, penstock_error *out)
{
	to->is = 0;
	void *d = size ? driver() : NULL;
	if (!d)
		return PENSTOCK_OK;
	int32_t r = describe(d, (uint64_t)(uintptr_t)memory, to, out);
	dlclose(d); /* which is not the last reference */
	return r;
}

void put_memory(request *q, const void *memory, uint64_t size, const device *d)
{
	put_u64(q, (uint64_t)(uintptr_t)memory);
	put_u64(q, size);
	put_data(q, d->token, d->is ? sizeof d->token : 0);
	put_text(q, d->is ? d->bus : NULL);
}
