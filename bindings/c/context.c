//go:build cgo

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>

extern unsigned long long loads(void);

/* Of CUDA's driver, once the program has loaded it. */
static int (*_Atomic get)(void **);
static int (*_Atomic set)(void *);

/*
 * The CUDA context of this thread; UINTPTR_MAX: the driver is not there, or not yet begun. What Go does with a device on a thread of C makes another context
 * current there, and a program that has several devices would go on with the wrong one.
 */
__attribute__((visibility("hidden"))) uintptr_t context_get(void)
{
	static _Atomic unsigned long long without; /* so many libraries were loaded when the driver was not there */
	void *now;
	if (!get) {
		unsigned long long n = loads();
		if (n > 0 && n == without)
			return UINTPTR_MAX;
		void *d = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
		if (!d) {
			without = n;
			return UINTPTR_MAX;
		}
		set = (int (*)(void *))dlsym(d, "cuCtxSetCurrent");
		get = (int (*)(void **))dlsym(d, "cuCtxGetCurrent");
		if (!get || !set)
			return UINTPTR_MAX;
	}
	return get(&now) == 0 ? (uintptr_t)now : UINTPTR_MAX;
}

/* Makes that context current again. */
__attribute__((visibility("hidden"))) void context_keep(uintptr_t context)
{
	void *now;
	if (context != UINTPTR_MAX && (get(&now) != 0 || (uintptr_t)now != context))
		set((void *)context);
}
