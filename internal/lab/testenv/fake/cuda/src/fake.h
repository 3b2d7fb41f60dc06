/*
 * What the fake driver has beside the driver API: kernels, scripts, the report. Real libcuda.so.1 has none of these symbols, so
 * a program can ask with dlsym which of the two it has.
 */
#ifndef PENSTOCK_FAKE_CUDA_H
#define PENSTOCK_FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#define PENSTOCK_FAKE_CUDA_API __attribute__((visibility("default")))

/*
 * One launch, as a kernel written in C sees it. The kernel runs once per launch, on the thread of its stream, and does the
 * work of the whole grid.
 */
typedef struct penstock_fake_cuda_launch {
    unsigned int grid[3], block[3], shared;
    unsigned int nparams;
    void **params; /* params[i] points at a copy of the i-th argument */
    /*
     * The bytes behind a device pointer or pinned host pointer, for this launch only. NULL when any of them is not memory that
     * the launch's context may access so; the context has then failed with CUDA_ERROR_ILLEGAL_ADDRESS, as on a GPU, and the
     * kernel should return.
     */
    void *(*view)(const struct penstock_fake_cuda_launch *, uint64_t ptr, size_t n, int write);
    /* The view of a global variable of the module, NULL when it has none of this name. */
    void *(*global)(const struct penstock_fake_cuda_launch *, const char *name, size_t *n);
    /* 1 when the context is being destroyed: a resident kernel polls it and returns. */
    int (*stopping)(const struct penstock_fake_cuda_launch *);
} penstock_fake_cuda_launch;

typedef void (*penstock_fake_cuda_fn)(const penstock_fake_cuda_launch *);

#define PENSTOCK_FAKE_CUDA_RESIDENT 1u /* runs until the host asks it to end: implicit synchronisation would hang */

/*
 * Gives the kernel called name, of every module whose PTX has an entry of that name, its body. Later calls replace earlier ones.
 * Without one, a kernel is looked up as the exported function of its name in the library $PENSTOCK_FAKE_CUDA_KERNELS; such a
 * kernel is resident when that library also exports a symbol NAME_resident. Returns 0.
 */
PENSTOCK_FAKE_CUDA_API int penstock_fake_cuda_kernel(const char *name, penstock_fake_cuda_fn fn, unsigned int flags);

/*
 * Obeys the lines of a script (see the package documentation), separated by newlines or semicolons: all of them, or none when
 * one is wrong. Returns 0, or -1 with the reason and its position in penstock_fake_cuda_script_error. An empty script removes
 * what earlier ones ordered, except what describes devices.
 */
PENSTOCK_FAKE_CUDA_API int penstock_fake_cuda_script(const char *script);
PENSTOCK_FAKE_CUDA_API const char *penstock_fake_cuda_script_error(void);

/*
 * Writes the report into buf, at most n bytes with the final 0, and returns the length that it has (as snprintf does): lines
 * that begin with "violation: ", "warning: " or "live: ". Nothing is forgotten by reading.
 */
PENSTOCK_FAKE_CUDA_API size_t penstock_fake_cuda_report(char *buf, size_t n);
PENSTOCK_FAKE_CUDA_API int penstock_fake_cuda_violations(void); /* how many violations since the start */
PENSTOCK_FAKE_CUDA_API int penstock_fake_cuda_live(void);       /* how many objects are alive */

/* How often the exported function of this name was called; -1 when there is none. */
PENSTOCK_FAKE_CUDA_API long penstock_fake_cuda_calls(const char *name);

/*
 * Forgets everything, as if the process had restarted: objects, violations, counters, script,
     errors that stay. The environment is
 * read again by the next cuInit. Returns -1, and does nothing, when a kernel does not end. Other threads must not be in a call.
 */
PENSTOCK_FAKE_CUDA_API int penstock_fake_cuda_restart(void);

#endif
