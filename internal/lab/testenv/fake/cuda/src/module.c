/*
 * Modules, functions and launches. Driver API manual, "Module Management", "Execution Control". A module is PTX text; the body
 * of each of its kernels is a C function that somebody registered under the kernel's name.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

#define BEGIN(fn) \
    call c; \
    CUresult r = begin(&c, F_##fn, NEEDS_CONTEXT); \
    if (r != CUDA_SUCCESS) return end(&c, r)

static struct body { char *name; penstock_fake_cuda_fn fn; bool resident; } *bodies;
static int nbodies;

int penstock_fake_cuda_kernel(const char *name, penstock_fake_cuda_fn fn, unsigned int flags) {
    pthread_mutex_lock(&G.mu);
    struct body *b = NULL;
    for (int i = 0; i < nbodies; i++)
        if (strcmp(bodies[i].name, name) == 0) b = &bodies[i];
    if (b == NULL) {
        bodies = realloc(bodies, (size_t)(nbodies + 1) * sizeof *bodies);
        if (bodies == NULL) abort();
        b = &bodies[nbodies++];
        b->name = strdup(name);
    }
    b->fn = fn;
    b->resident = flags & PENSTOCK_FAKE_CUDA_RESIDENT;
    pthread_mutex_unlock(&G.mu);
    return 0;
}

void kernels_forget(void) {
    for (int i = 0; i < nbodies; i++) free(bodies[i].name);
    free(bodies);
    bodies = NULL;
    nbodies = 0;
}

/* The C function of a kernel: registered, or exported by $PENSTOCK_FAKE_CUDA_KERNELS. */
static penstock_fake_cuda_fn body_of(const char *name, bool *resident, char *why, size_t n) {
    for (int i = 0; i < nbodies; i++)
        if (strcmp(bodies[i].name, name) == 0) {
            *resident = bodies[i].resident;
            return bodies[i].fn;
        }
    const char *path = getenv("PENSTOCK_FAKE_CUDA_KERNELS");
    snprintf(why, n, "it was not registered, and $PENSTOCK_FAKE_CUDA_KERNELS is not set");
    if (path == NULL || *path == 0) return NULL;
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* stays: its code may run at any time */
    if (lib == NULL) {
        snprintf(why, n, "%s", dlerror());
        return NULL;
    }
    char marker[300];
    snprintf(marker, sizeof marker, "%s_resident", name);
    *resident = dlsym(lib, marker) != NULL;
    snprintf(why, n, "%s has no function of this name", path);
    void *sym = dlsym(lib, name);
    penstock_fake_cuda_fn fn;
    memcpy(&fn, &sym, sizeof fn);
    return fn;
}

/* The newest PTX of a driver: 11.0 has 7.0, each release one more, but 12.6 repeats 8.5; 13.0 has 9.0. */
static int newest_ptx(int driver) {
    int major = driver / 1000, minor = driver % 1000 / 10;
    if (major == 11) return 70 + minor;
    if (major == 12) return 80 + (minor >= 6 ? minor - 1 : minor);
    return major * 10 - 40 + minor;
}

void module_free(module *m, const call *c) {
    for (int i = 0; i < m->nentries; i++) {
        function *f = m->entries[i].fn;
        if (f != NULL) {
            object_remove(&f->o);
            free(f);
        }
        free(m->entries[i].name);
        free(m->entries[i].params);
    }
    for (int i = 0; i < m->nglobals; i++) {
        if (m->globals[i].mem != NULL) mem_free(m->globals[i].mem, c);
        free(m->globals[i].name);
    }
    free(m->entries);
    free(m->globals);
    object_remove(&m->o);
    free(m);
}

static CUresult load(call *c, CUmodule *out, const void *image, char *log, size_t n) {
    CUresult r;
    if (out == NULL || image == NULL) return bad(c, CUDA_ERROR_INVALID_VALUE, "module or image is NULL");
    if ((r = implicit_sync(c, c->ctx)) != CUDA_SUCCESS) return r;
    const unsigned char *b = image;
    if ((b[0] == 0x7f && b[1] == 'E' && b[2] == 'L' && b[3] == 'F') || (b[0] == 0x50 && b[1] == 0xed && b[2] == 0x55 &&
        b[3] == 0xba)) {
        warning_(c, "the image is a cubin or fatbin: the fake reads PTX only");
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    module *m = calloc(1, sizeof *m);
    if (m == NULL) abort();
    object_add(&m->o, T_MODULE, c->ctx, c);
    char mine[512] = "";
    if (log == NULL || n == 0) {
        log = mine;
        n = sizeof mine;
    }
    const int *attr = c->ctx->dev->attr;
    int sm = attr[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] * 10 + attr[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
    if ((r = ptx_parse(image, m, log, n)) == CUDA_SUCCESS) {
        if (m->ptx > newest_ptx(G.driver)) {
            snprintf(log, n, "PTX %d.%d, but driver %d knows %d.%d at most", m->ptx / 10, m->ptx % 10, G.driver,
                newest_ptx(G.driver) / 10,
                     newest_ptx(G.driver) % 10);
            r = CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
        } else if (m->sm > sm) {
            snprintf(log, n, "the target sm_%d is newer than the device, sm_%d", m->sm, sm);
            r = CUDA_ERROR_NO_BINARY_FOR_GPU;
        }
    }
    for (int i = 0; i < m->nglobals && r == CUDA_SUCCESS; i++) {
        alloc *a = mem_alloc(c, c->ctx, m->globals[i].size, &r);
        if (a == NULL) break;
        a->module_global = true;
        m->globals[i].mem = a;
        memset(shadow(a->base), 0, a->size); /* not initialised in the text means 0 */
    }
    if (r != CUDA_SUCCESS) {
        if (*log != 0) warning_(c, "%s: %s", result_name((int)r), log);
        module_free(m, c);
        return r;
    }
    *out = (CUmodule)(uintptr_t)m->o.handle;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *out, const void *image) {
    BEGIN(cuModuleLoadData);
    return end(&c, load(&c, out, image, NULL, 0));
}

CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int n, CUjit_option *options, void **values) {
    BEGIN(cuModuleLoadDataEx);
    char *log = NULL;
    size_t room = 0;
    void **filled = NULL;
    if (n > 0 && (options == NULL || values == NULL)) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%u options, but NULL", n));
    for (unsigned i = 0; i < n; i++) {
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER) log = values[i];
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
            room = (size_t)(uintptr_t)values[i];
            filled = &values[i];
        }
    }
    if (log != NULL && room > 0) *log = 0;
    r = load(&c, out, image, log, room);
    if (filled != NULL) *filled = (void *)(uintptr_t)(log != NULL && room > 0 ? strlen(log) : 0);
    return end(&c, r);
}

static module *module_get(const call *c, CUmodule h, CUresult *r) {
    module *m = FIND(module, T_MODULE, h);
    if (m == NULL) *r = bad_handle(c, (uint64_t)(uintptr_t)h, T_MODULE);
    return m;
}

/* A stream with a launch of the module that is not over, and its place there. */
static stream *busy(context *x, module *m, uint64_t *seq) {
    for (stream *s = x->streams; s != NULL; s = s->next)
        for (op *o = s->head; o != NULL; o = o->next)
            if (o->fn != NULL && o->fn->mod == m) {
                *seq = o->seq;
                return s;
            }
    return NULL;
}

CUresult cuModuleUnload(CUmodule h) {
    BEGIN(cuModuleUnload);
    module *m = module_get(&c, h, &r);
    if (m == NULL) return end(&c, r);
    if (m->o.ctx != c.ctx) return end(&c, bad(&c, CUDA_ERROR_INVALID_CONTEXT, "the module was loaded in another context"));
    if ((r = implicit_sync(&c, c.ctx)) != CUDA_SUCCESS) return end(&c, r);
    uint64_t seq;
    stream *s = busy(c.ctx, m, &seq);
    if (s != NULL) violation(&c, "unloads a module of which launches are not over");
    for (; s != NULL; s = busy(c.ctx, m, &seq)) {
        wait_for(s, seq);
        if (FIND(context, T_CONTEXT, c.ctx_handle) == NULL) return end(&c, CUDA_ERROR_CONTEXT_IS_DESTROYED);
        if ((m = FIND(module, T_MODULE, h)) == NULL) return end(&c, bad_handle(&c, (uint64_t)(uintptr_t)h, T_MODULE));
    }
    module_free(m, &c);
    return end(&c, CUDA_SUCCESS);
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule h, const char *name) {
    BEGIN(cuModuleGetFunction);
    module *m = module_get(&c, h, &r);
    if (m == NULL) return end(&c, r);
    if (out == NULL || name == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "function or name is NULL"));
    for (int i = 0; i < m->nentries; i++) {
        struct entry *e = &m->entries[i];
        if (strcmp(e->name, name) != 0) continue;
        if (e->fn == NULL) {
            char why[512];
            bool resident = false;
            penstock_fake_cuda_fn fn = body_of(name, &resident, why, sizeof why);
            if (fn == NULL) {
                warning_(&c, "the module has the kernel %s, but there is no C function for it: %s", name, why);
                return end(&c, CUDA_ERROR_NOT_FOUND);
            }
            function *f = calloc(1, sizeof *f);
            if (f == NULL) abort();
            *f = (function){.mod = m, .name = e->name, .fn = fn, .resident = resident, .params = e->params, .nparams = e->nparams,
                .args = e->args};
            object_add(&f->o, T_FUNCTION, m->o.ctx, &c);
            e->fn = f;
        }
        *out = (CUfunction)(uintptr_t)e->fn->o.handle;
        return end(&c, CUDA_SUCCESS);
    }
    return end(&c, CUDA_ERROR_NOT_FOUND);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule h, const char *name) {
    BEGIN(cuModuleGetGlobal_v2);
    module *m = module_get(&c, h, &r);
    if (m == NULL) return end(&c, r);
    if (name == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "name is NULL"));
    for (int i = 0; i < m->nglobals; i++)
        if (strcmp(m->globals[i].name, name) == 0) {
            if (dptr != NULL) *dptr = m->globals[i].mem->base;
            if (bytes != NULL) *bytes = m->globals[i].size;
            return end(&c, CUDA_SUCCESS);
        }
    return end(&c, CUDA_ERROR_NOT_FOUND);
}

#define FUNCTION(name) \
    BEGIN(name); \
    function *f = FIND(function, T_FUNCTION, fn); \
    if (f == NULL) return end(&c, bad_handle(&c, (uint64_t)(uintptr_t)fn, T_FUNCTION))

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction fn) {
    FUNCTION(cuFuncGetAttribute);
    if (pi == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "pi is NULL"));
    switch ((int)attrib) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *pi = c.ctx->dev->attr[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK]; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *pi = f->mod->ptx; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *pi = f->mod->sm; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *pi = f->dynamic_shared; break;
    default:
        if ((int)attrib < 0 || (int)attrib > 14) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "attribute %d", (int)attrib));
        *pi = 0;
    }
    return end(&c, CUDA_SUCCESS);
}

CUresult cuFuncSetAttribute(CUfunction fn, CUfunction_attribute attrib, int value) {
    FUNCTION(cuFuncSetAttribute);
    if (attrib != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
        value > c.ctx->dev->attr[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR])
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "attribute %d, value %d", (int)attrib, value));
    f->dynamic_shared = value;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction fn, int block, size_t shared) {
    FUNCTION(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    const int *attr = c.ctx->dev->attr;
    if (blocks == NULL || block <= 0) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "blocks is NULL, or %d threads", block));
    int n = attr[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] / block,
        most = attr[CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR];
    if (n > most) n = most;
    if (shared > 0 && (size_t)attr[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR] / shared < (size_t)n)
        n = (int)((size_t)attr[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR] / shared);
    *blocks = n;
    return end(&c, CUDA_SUCCESS);
}

static op *op_of(const penstock_fake_cuda_launch *l) { return (op *)(uintptr_t)((const char *)l - offsetof(op, launch)); }

/* The name under which the report knows a kernel's mistakes. */
static void *kernel_view(const penstock_fake_cuda_launch *l, uint64_t p, size_t n, int write) {
    op *o = op_of(l);
    char *v = NULL;
    pthread_mutex_lock(&G.mu);
    char what[320];
    snprintf(what, sizeof what, "kernel %.256s", o->fn->name);
    CUresult r = check_device(NULL, o->s->o.ctx, p, n, write != 0, true, what);
    if (r != CUDA_SUCCESS) o->result = CUDA_ERROR_ILLEGAL_ADDRESS;
    else v = cpu_address(p);
    pthread_mutex_unlock(&G.mu);
    return v;
}

static void *kernel_global(const penstock_fake_cuda_launch *l, const char *name, size_t *n) {
    op *o = op_of(l);
    void *v = NULL;
    pthread_mutex_lock(&G.mu);
    module *m = o->fn->mod;
    for (int i = 0; i < m->nglobals; i++)
        if (strcmp(m->globals[i].name, name) == 0) {
            v = shadow(m->globals[i].mem->base);
            if (n != NULL) *n = m->globals[i].size;
        }
    pthread_mutex_unlock(&G.mu);
    return v;
}

static int kernel_stopping(const penstock_fake_cuda_launch *l) { return __atomic_load_n(&op_of(l)->s->abort, __ATOMIC_ACQUIRE); }

static void run_kernel(op *o) {
    set_in_callback(true);
    o->fn->fn(&o->launch);
    set_in_callback(false);
}

static CUresult launch(call *c, CUfunction fn, const unsigned g[3], const unsigned b[3], unsigned shared, CUstream stream_,
                       void **params, void **extra) {
    function *f = FIND(function, T_FUNCTION, fn);
    const int *attr = c->ctx->dev->attr;
    CUresult r;
    stream *s;
    if (f == NULL) return bad_handle(c, (uint64_t)(uintptr_t)fn, T_FUNCTION);
    if ((r = stream_get(c, stream_, &s)) != CUDA_SUCCESS) return r;
    if (f->o.ctx != c->ctx) return bad(c, CUDA_ERROR_INVALID_HANDLE, "the function belongs to another context");
    if (s->o.ctx != c->ctx) return bad(c, CUDA_ERROR_INVALID_HANDLE, "the stream belongs to another context");
    for (int i = 0; i < 3; i++)
        if (g[i] == 0 || b[i] == 0 || g[i] > (unsigned)attr[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i] ||
            b[i] > (unsigned)attr[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i])
            return bad(c, CUDA_ERROR_INVALID_VALUE, "dimension %d: %u blocks of %u threads", i, g[i], b[i]);
    if ((uint64_t)b[0] * b[1] * b[2] > (uint64_t)attr[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK])
        return bad(c, CUDA_ERROR_INVALID_VALUE, "blocks of %ux%ux%u threads", b[0], b[1], b[2]);
    int most = attr[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK];
    if (f->dynamic_shared > most) most = f->dynamic_shared;
    if (shared > (unsigned)most) return bad(c, CUDA_ERROR_INVALID_VALUE, "%u bytes of shared memory, %d at most", shared, most);
    if (params != NULL && extra != NULL) return bad(c, CUDA_ERROR_INVALID_VALUE, "both params and extra are given");
    const char *packed = NULL;
    size_t size = 0;
    for (int i = 0; extra != NULL && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) packed = extra[i + 1];
        else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *(size_t *)extra[i + 1];
        else return bad(c, CUDA_ERROR_INVALID_VALUE, "extra[%d] is %p", i, extra[i]);
    }
    if (f->nparams > 0 && params == NULL && packed == NULL) return bad(c, CUDA_ERROR_INVALID_VALUE,
        "the kernel %s has %d parameters, none is given", f->name, f->nparams);
    if (packed != NULL && size < f->args) return bad(c, CUDA_ERROR_INVALID_VALUE,
        "%zu bytes of arguments, the kernel %s takes %zu", size, f->name, f->args);
    op *o = op_new(run_kernel);
    o->fn = f;
    o->resident = f->resident;
    o->delay_us = G.delay_launch;
    o->args = malloc(f->args + 16);
    o->launch.params = calloc((size_t)f->nparams + 1, sizeof *o->launch.params);
    if (o->args == NULL || o->launch.params == NULL) abort();
    for (int i = 0; i < f->nparams; i++) {
        param p = f->params[i];
        o->launch.params[i] = o->args + p.off;
        if (packed == NULL && params[i] == NULL) {
            op_free(o);
            return bad(c, CUDA_ERROR_INVALID_VALUE, "params[%d] is NULL", i);
        }
        memcpy(o->args + p.off, packed != NULL ? packed + p.off : params[i], p.size);
        uint64_t v = 0;
        if (p.size == 8) memcpy(&v, o->args + p.off, 8);
        if (v != 0 && (alloc_at(v) != NULL || host_at(v) != NULL)) op_use(o, v, 1); /* looks like a pointer */
    }
    o->launch.grid[0] = g[0], o->launch.grid[1] = g[1], o->launch.grid[2] = g[2];
    o->launch.block[0] = b[0], o->launch.block[1] = b[1], o->launch.block[2] = b[2];
    o->launch.shared = shared;
    o->launch.nparams = (unsigned)f->nparams;
    o->launch.view = kernel_view;
    o->launch.global = kernel_global;
    o->launch.stopping = kernel_stopping;
    return submit(c, s, o);
}

CUresult cuLaunchKernel(CUfunction fn, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
    unsigned int bz,
                        unsigned int shared, CUstream stream, void **params, void **extra) {
    BEGIN(cuLaunchKernel);
    return end(&c, launch(&c, fn, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, params, extra));
}

CUresult cuLaunchCooperativeKernel(CUfunction fn, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
    unsigned int by,
                                   unsigned int bz, unsigned int shared, CUstream stream, void **params) {
    BEGIN(cuLaunchCooperativeKernel);
    const int *attr = c.ctx->dev->attr;
    if (!attr[CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH]) return end(&c, CUDA_ERROR_NOT_SUPPORTED);
    uint64_t threads = (uint64_t)bx * by * bz,
        per = threads == 0 ? 1 : (uint64_t)attr[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] / threads;
    if ((uint64_t)gx * gy * gz > per * (uint64_t)attr[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT])
        return end(&c, bad(&c, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "%ux%ux%u blocks cannot be resident together", gx, gy, gz));
    return end(&c, launch(&c, fn, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, params, NULL));
}
