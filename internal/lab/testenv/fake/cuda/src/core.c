/* Every call begins and ends here: the order of things (initialised, forked, thread, context), scripted errors, counters. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "state.h"

struct state G = {.mu = PTHREAD_MUTEX_INITIALIZER, .progress = PTHREAD_COND_INITIALIZER};

const char *const call_names[F_COUNT] = {
#define X(symbol, base, since, args) #symbol,
    CUDA_CALLS(X)
#undef X
};

static const struct {
    const char *base;
    int since;
    void *fn;
} table[] = {
#define X(symbol, base, since, args) {#base, since, (void *)symbol},
    CUDA_CALLS(X)
#undef X
};

static const struct {
    int value;
    const char *name, *text;
} results[] = {
#define X(name, value, text) {value, #name, text},
    CUDA_RESULTS(X)
#undef X
};

const char *result_name(int r) {
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i].value == r) return results[i].name;
    return NULL;
}

const char *result_text(int r) {
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i].value == r) return results[i].text;
    return NULL;
}

double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

origin origin_now(const call *c) { return (origin){G.calls, c->fn, gettid()}; }

/* A fork copies one thread and none of the streams': the child may use nothing of a driver that its parent initialised. Real
 * drivers answer so too (CUDA_ERROR_NOT_INITIALIZED), and every framework has it among its known problems. */
static void before_fork(void) { pthread_mutex_lock(&G.mu); }
static void after_fork(void) { pthread_mutex_unlock(&G.mu); }
static void in_child(void) {
    if (G.initialised) G.forked = true;
    pthread_mutex_unlock(&G.mu); /* the thread that forked locked it */
}

static void at_exit_report(void) {
    const char *path = getenv("PENSTOCK_FAKE_CUDA_REPORT");
    if (path == NULL || *path == 0 || G.forked || pthread_mutex_trylock(&G.mu) != 0) return;
    pthread_mutex_unlock(&G.mu);
    size_t n = penstock_fake_cuda_report(NULL, 0) + 4096;
    char *buf = malloc(n);
    FILE *f = buf == NULL ? NULL : fopen(path, "a");
    if (f != NULL) {
        penstock_fake_cuda_report(buf, n);
        fprintf(f, "process %d: %llu calls, %d violations, %d live\n%s", getpid(), (unsigned long long)G.calls,
                penstock_fake_cuda_violations(), penstock_fake_cuda_live(), buf);
        fclose(f);
    }
    free(buf);
}

__attribute__((constructor)) static void loaded(void) {
    pthread_atfork(before_fork, after_fork, in_child);
    devices_default();
    atexit(at_exit_report);
}

static CUresult scripted(call *c) {
    CUresult r = CUDA_SUCCESS;
    for (rule **p = &G.rules; *p != NULL;) {
        rule *u = *p;
        if (u->fn >= 0 && u->fn != c->fn && u->alt != c->fn) {
            p = &u->next;
            continue;
        }
        if (u->at > 1) {
            u->at--;
            p = &u->next;
            continue;
        }
        if (u->sticky)
            c->later = u->result;
        else if (r == CUDA_SUCCESS)
            r = u->result;
        if (u->at < 0) {
            p = &u->next;
            continue;
        }
        *p = u->next;
        free(u);
    }
    return r;
}

CUresult begin(call *c, int fn, enum needs needs) {
    pthread_mutex_lock(&G.mu);
    *c = (call){.fn = fn};
    G.calls++;
    G.per_fn[fn]++;
    if (G.forked && needs != NEEDS_NOTHING) return bad(c, CUDA_ERROR_NOT_INITIALIZED, "in a child that was forked after cuInit");
    if (in_callback() && needs != NEEDS_NOTHING)
        return bad(c, CUDA_ERROR_NOT_PERMITTED, "called from a callback or kernel, which must not use CUDA");
    CUresult r = scripted(c);
    if (r != CUDA_SUCCESS) return r;
    if (needs != NEEDS_NOTHING && !G.initialised) return bad(c, CUDA_ERROR_NOT_INITIALIZED, "before cuInit");
    if (needs != NEEDS_CONTEXT) return CUDA_SUCCESS;
    context *x = current();
    if (x == NULL)
        return bad(c, CUDA_ERROR_INVALID_CONTEXT,
                   "this thread has no current context: contexts belong to OS threads, so lock the thread and set one");
    if (x->dead) return bad(c, CUDA_ERROR_CONTEXT_IS_DESTROYED, "this thread's current context was destroyed");
    c->ctx = x;
    c->ctx_handle = x->o.handle;
    return failed(x->dev);
}

CUresult end(call *c, CUresult r) {
    if (c->later != CUDA_SUCCESS && r == CUDA_SUCCESS) {
        context *x = c->ctx_handle != 0 ? FIND(context, T_CONTEXT, c->ctx_handle) : current();
        if (x != NULL && !x->dead)
            device_fail(x->dev, x, c->later);
        else
            warning_(c, "a scripted error that stays has no context to appear in");
    }
    pthread_mutex_unlock(&G.mu);
    return r;
}

device *device_of(CUdevice d) { return d < 0 || d >= G.ndevices ? NULL : &G.dev[d]; }

CUresult cuInit(unsigned int flags) {
    call c;
    CUresult r = begin(&c, F_cuInit, NEEDS_NOTHING);
    if (r != CUDA_SUCCESS) return end(&c, r);
    if (G.forked) return end(&c, bad(&c, CUDA_ERROR_NOT_INITIALIZED, "in a child that was forked after cuInit"));
    if (flags != 0) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "flags %#x: must be 0", flags));
    if (G.initialised) return end(&c, CUDA_SUCCESS);
    const char *env = getenv("PENSTOCK_FAKE_CUDA");
    if (env != NULL && script_run(env, G.env_error, sizeof G.env_error) != 0) {
        fprintf(stderr, "libpenstock-fake-cuda: $PENSTOCK_FAKE_CUDA: %s\n", G.env_error);
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "$PENSTOCK_FAKE_CUDA: %s", G.env_error));
    }
    if (G.ndevices == 0) return end(&c, CUDA_ERROR_NO_DEVICE);
    if (!ranges_init()) return end(&c, CUDA_ERROR_OPERATING_SYSTEM);
    G.initialised = true;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuDriverGetVersion(int *version) {
    call c;
    CUresult r = begin(&c, F_cuDriverGetVersion, NEEDS_NOTHING);
    if (r == CUDA_SUCCESS && version == NULL) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) *version = G.driver;
    return end(&c, r);
}

static CUresult error_text(int fn, CUresult error, const char **str, const char *(*get)(int)) {
    call c;
    CUresult r = begin(&c, fn, NEEDS_NOTHING);
    if (r == CUDA_SUCCESS && str == NULL) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS && (*str = get((int)error)) == NULL) r = CUDA_ERROR_INVALID_VALUE;
    return end(&c, r);
}

CUresult cuGetErrorName(CUresult error, const char **str) { return error_text(F_cuGetErrorName, error, str, result_name); }
CUresult cuGetErrorString(CUresult error, const char **str) { return error_text(F_cuGetErrorString, error, str, result_text); }

static CUresult proc_address(call *c, const char *symbol, void **pfn, int version, uint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    if (symbol == NULL || pfn == NULL || flags > 2) return CUDA_ERROR_INVALID_VALUE;
    int best = -1;
    bool known = false;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].base, symbol) != 0) continue;
        known = true;
        if (table[i].since <= version && table[i].since <= G.driver && (best < 0 || table[i].since >= table[best].since))
            best = (int)i;
    }
    /* the function itself has two shapes: it answers with the one that was asked */
    if (strcmp(symbol, "cuGetProcAddress") == 0 && best >= 0)
        *pfn = version >= 12000 && G.driver >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
    else
        *pfn = best < 0 ? NULL : table[best].fn;
    if (status != NULL)
        *status = best >= 0 ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known   ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                            : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (best < 0) warning_(c, "%s at version %d: %s", symbol, version, known ? "needs a newer one" : "the fake does not have it");
    return CUDA_SUCCESS; /* with a NULL: so the manual, and what callers forget to look at */
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags) {
    call c;
    CUresult r = begin(&c, F_cuGetProcAddress, NEEDS_NOTHING);
    return end(&c, r != CUDA_SUCCESS ? r : proc_address(&c, symbol, pfn, version, flags, NULL));
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, CUdriverProcAddressQueryResult *status) {
    call c;
    CUresult r = begin(&c, F_cuGetProcAddress_v2, NEEDS_NOTHING);
    return end(&c, r != CUDA_SUCCESS ? r : proc_address(&c, symbol, pfn, version, flags, status));
}

long penstock_fake_cuda_calls(const char *name) {
    long n = -1;
    pthread_mutex_lock(&G.mu);
    for (int i = 0; i < F_COUNT && n < 0; i++)
        if (strcmp(call_names[i], name) == 0) n = (long)G.per_fn[i];
    pthread_mutex_unlock(&G.mu);
    return n;
}

int penstock_fake_cuda_restart(void) {
    pthread_mutex_lock(&G.mu);
    for (context *x = G.contexts; x != NULL; x = x->next)
        if (!x->dead && x->resident > 0) {
            pthread_mutex_unlock(&G.mu);
            return -1;
        }
    call c = {.fn = F_cuInit};
    while (G.contexts != NULL) context_destroy(G.contexts, &c);
    ranges_forget();
    kernels_forget();
    current_forget();
    script_forget();
    report_forget();
    for (int i = 0; i < MAX_DEVICES; i++) G.dev[i] = (device){0};
    devices_default();
    G.calls = 0;
    memset(G.per_fn, 0, sizeof G.per_fn);
    G.initialised = false;
    pthread_mutex_unlock(&G.mu);
    return 0;
}
