//go:build cgo

/* Memory of CUDA devices with the signatures of PyTorch's pluggable allocator. It is the program's, so no Go runtime and no agent has a part in it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "penstock.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

enum { DEVICES = 64 };

/* What the driver exports to other processes and to network cards are blocks of this size: an allocation that is a multiple of it shares none. */
static const size_t UNIT = 2 << 20;

typedef unsigned long long address;

static struct {
	pthread_mutex_t mu; /* guards what follows */
	void *lib;
	void *contexts[DEVICES]; /* the primary ones; kept until the process ends */
	int (*init)(unsigned);
	int (*get)(int *, int);
	int (*retain)(void **, int);
	int (*push)(void *);
	int (*pop)(void **);
	int (*alloc)(address *, size_t);
	int (*release)(address);
	int (*range)(address *, size_t *, address);
} driver = {.mu = PTHREAD_MUTEX_INITIALIZER};

static int load(void)
{
	if (driver.lib)
		return 1;
	void *lib = dlopen("libcuda.so.1", RTLD_LAZY);
	if (!lib)
		return 0;
	*(void **)&driver.init = dlsym(lib, "cuInit");
	*(void **)&driver.get = dlsym(lib, "cuDeviceGet");
	*(void **)&driver.retain = dlsym(lib, "cuDevicePrimaryCtxRetain");
	*(void **)&driver.push = dlsym(lib, "cuCtxPushCurrent_v2");
	*(void **)&driver.pop = dlsym(lib, "cuCtxPopCurrent_v2");
	*(void **)&driver.alloc = dlsym(lib, "cuMemAlloc_v2");
	*(void **)&driver.release = dlsym(lib, "cuMemFree_v2");
	*(void **)&driver.range = dlsym(lib, "cuMemGetAddressRange_v2");
	if (!driver.init || !driver.get || !driver.retain || !driver.push || !driver.pop || !driver.alloc || !driver.release || !driver.range || driver.init(0) != 0) {
		dlclose(lib);
		return 0;
	}
	driver.lib = lib;
	return 1;
}

/* Makes the primary context of a device current; 0, or what the driver says. -1: there is no driver. */
static int enter(int device)
{
	int r = -1, cu;
	void *context = NULL;
	pthread_mutex_lock(&driver.mu);
	if (device >= 0 && device < DEVICES && load()) {
		r = 0;
		if (!driver.contexts[device] && (r = driver.get(&cu, device)) == 0)
			r = driver.retain(&driver.contexts[device], cu);
		context = driver.contexts[device];
	}
	pthread_mutex_unlock(&driver.mu);
	return r != 0 ? r : driver.push(context);
}

/* PyTorch takes no error: it is told to people. */
static void complain(const char *what, int64_t size, int device, int r)
{
	if (r < 0)
		fprintf(stderr, "penstock: %s %lld bytes of CUDA device %d: there is no driver (libcuda.so.1) that starts, or no such device\n", what, (long long)size, device);
	else
		fprintf(stderr, "penstock: %s %lld bytes of CUDA device %d: the driver says %d\n", what, (long long)size, device, r);
}

void *penstock_cuda_alloc(int64_t size, int device, void *stream)
{
	address p = 0;
	void *context;
	(void)stream; /* the memory is free for all of them */
	if (size <= 0)
		return NULL;
	int r = enter(device);
	if (r == 0) {
		size_t n = ((size_t)size + UNIT - 1) / UNIT * UNIT;
		r = driver.alloc(&p, n);
		if (r == 0 && p % UNIT != 0) { /* so large ones commonly are aligned */
			driver.release(p);
			r = driver.alloc(&p, n + UNIT);
			p = (p + UNIT - 1) / UNIT * UNIT;
		}
		driver.pop(&context);
	}
	if (r == 0)
		return (void *)(uintptr_t)p;
	complain("allocate", size, device, r);
	return NULL;
}

void penstock_cuda_free(void *memory, int64_t size, int device, void *stream)
{
	address base;
	size_t n;
	void *context;
	(void)stream; /* the driver waits for all of them */
	if (!memory)
		return;
	int r = enter(device);
	if (r == 0) {
		r = driver.range(&base, &n, (address)(uintptr_t)memory);
		if (r == 0)
			r = driver.release(base);
		driver.pop(&context);
	}
	if (r != 0)
		complain("free", size, device, r);
}
