/*
 * check LIBRARY [NAME...]: runs the checks (those named, or all that fit the library) and prints "ok NAME", "skip NAME: why" or
 * "FAIL NAME: what". check --list prints the names of all: "public NAME" and "fake NAME". Ends with status 1 after a failure.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

struct driver d;
const char *library;
static struct check *first;
static FILE *said; /* what a check has to say goes to its runner through here */

void check_add(struct check *c) {
    struct check **p = &first;
    while (*p != NULL && strcmp((*p)->name, c->name) < 0) p = &(*p)->next;
    c->next = *p;
    *p = c;
}

void fail(const char *file, int line, const char *format, ...) {
    const char *base = strrchr(file, '/');
    va_list args;
    va_start(args, format);
    fprintf(said, "FAIL %s:%d: ", base == NULL ? file : base + 1, line);
    vfprintf(said, format, args);
    va_end(args);
    if (d.report != NULL) {
        static char text[8192];
        d.report(text, sizeof text);
        fprintf(said, "\n%s", text);
    }
    fflush(said);
    _exit(1);
}

void skip(const char *why) {
    fprintf(said, "skip %s", why);
    fflush(said);
    _exit(0);
}

static void *symbol(void *lib, const char *name) { return dlsym(lib, name); }

void load(void) {
    void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL) fail(__FILE__, __LINE__, "%s", dlerror());
    void *p;
#define X(name, base, since, args) \
    p = symbol(lib, #name); \
    memcpy(&d.name, &p, sizeof p);
    CUDA_CALLS(X)
#undef X
#define HOOK(field) \
    p = symbol(lib, "penstock_fake_cuda_" #field); \
    memcpy(&d.field, &p, sizeof p)
    HOOK(kernel);
    HOOK(script);
    HOOK(script_error);
    HOOK(report);
    HOOK(violations);
    HOOK(live);
    HOOK(calls);
    HOOK(restart);
}

/* Runs one check in a child; true when it passed or was skipped. */
static bool run(struct check *c) {
    int ends[2];
    fflush(stdout);
    if (pipe(ends) != 0) abort();
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing outlives this program; it ends at its next line when nobody reads */
        close(ends[0]);
        said = fdopen(ends[1], "w");
        alarm(120); /* a hang is a failure */
        c->run();
        fprintf(said, "ok");
        fflush(said);
        exit(0); /* with its destructors: a sanitizer may have something to say */
    }
    close(ends[1]);
    static char text[16384];
    size_t n = 0;
    for (ssize_t got; n < sizeof text - 1; n += (size_t)got) {
        got = read(ends[0], text + n, sizeof text - 1 - n);
        if (got < 0 && errno == EINTR) got = 0;
        else if (got <= 0) break;
    }
    text[n] = 0;
    close(ends[0]);
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && strcmp(text, "ok") == 0) {
        printf("ok %s\n", c->name);
        return true;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && strncmp(text, "skip ", 5) == 0) {
        printf("skip %s: %s\n", c->name, text + 5);
        return true;
    }
    if (WIFSIGNALED(status))
        printf("FAIL %s: signal %d%s; %s\n", c->name, WTERMSIG(status), WTERMSIG(status) == SIGALRM ? " (it hung)" : "", text);
    else
        printf("FAIL %s: status %d; %s\n", c->name, WEXITSTATUS(status), text);
    return false;
}

int main(int argc, char **argv) {
    said = stdout;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (struct check *c = first; c != NULL; c = c->next) printf("%s %s\n", c->kind == FAKE ? "fake" : "public", c->name);
        return 0;
    }
    if (argc < 2) {
        fprintf(stderr, "usage: %s LIBRARY [NAME...] | --list\n", argv[0]);
        return 2;
    }
    library = argv[1];
    void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL); /* to see which of the two it is; cuInit is for the checks */
    if (lib == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    bool fake = dlsym(lib, "penstock_fake_cuda_report") != NULL, good = true;
    printf("driver %s\n", fake ? "fake" : "real");
    for (struct check *c = first; c != NULL; c = c->next) {
        bool named = argc == 2;
        for (int i = 2; i < argc; i++) named |= strcmp(argv[i], c->name) == 0;
        if (named && (fake || c->kind == PUBLIC)) good &= run(c);
    }
    return good ? 0 : 1;
}

CUcontext start(void) {
    load();
    OK(d.cuInit(0));
    CUcontext x;
    OK(d.cuCtxCreate_v2(&x, 0, 0));
    return x;
}

int attribute(int a) {
    int v;
    OK(d.cuDeviceGetAttribute(&v, (CUdevice_attribute)a, 0));
    return v;
}

void *thread(void *(*f)(void *), void *arg) {
    pthread_t t;
    void *r;
    if (pthread_create(&t, NULL, f, arg) != 0 || pthread_join(t, &r) != 0) abort();
    return r;
}

CUdeviceptr buffer(size_t n, int byte) {
    CUdeviceptr p;
    OK(d.cuMemAlloc_v2(&p, n));
    OK(d.cuMemsetD8_v2(p, (unsigned char)byte, n));
    OK(d.cuCtxSynchronize());
    return p;
}

CUfunction kernel(const char *name) {
    CUmodule m;
    CUfunction f;
    OK(d.cuModuleLoadData(&m, ptx));
    OK(d.cuModuleGetFunction(&f, m, name));
    return f;
}

void launch1(CUfunction f, CUstream s, void **params) { OK(d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, params, NULL)); }

void expect_words(CUdeviceptr p, uint32_t value, size_t n) {
    uint32_t *v = malloc(4 * n);
    OK(d.cuMemcpyDtoH_v2(v, p, 4 * n));
    for (size_t i = 0; i < n; i++)
        if (v[i] != value) fail(__FILE__, __LINE__, "word %zu is %#x, want %#x", i, v[i], value);
    free(v);
}

bool reported(const char *text) {
    static char buf[65536];
    d.report(buf, sizeof buf);
    return strstr(buf, text) != NULL;
}

static int seen;

void expect_violation(const char *text) {
    static char buf[65536];
    d.report(buf, sizeof buf);
    if (d.violations() != seen + 1) fail(__FILE__, __LINE__, "%d violations, want %d, the last with \"%s\"", d.violations(),
        seen + 1, text);
    seen++;
    char *at = buf;
    for (char *p = buf; (p = strstr(p, "violation: ")) != NULL; p++) at = p;
    at[strcspn(at, "\n")] = 0;
    if (strstr(at, text) == NULL) fail(__FILE__, __LINE__, "the violation is \"%s\", want \"%s\" in it", at, text);
}

void expect_clean(void) {
    if (d.violations() != seen) fail(__FILE__, __LINE__, "%d violations, want %d", d.violations(), seen);
}

/* Valid for real hardware; the fake takes the bodies from kernels.c. One thread each: speed is not what is checked. */
const char ptx[] =
    ".version 7.0\n"
    ".target sm_70\n"
    ".address_size 64\n"
    "// fill(p, value, n): n words\n"
    ".visible .entry fill(.param .u64 fill_p, .param .u32 fill_value, .param .u32 fill_n)\n"
    "{\n"
    "  .reg .pred %q; .reg .b32 %v; .reg .b32 %n; .reg .b32 %i; .reg .b64 %p;\n"
    "  ld.param.u64 %p, [fill_p];\n"
    "  ld.param.u32 %v, [fill_value];\n"
    "  ld.param.u32 %n, [fill_n];\n"
    "  cvta.to.global.u64 %p, %p;\n"
    "  mov.u32 %i, 0;\n"
    "FILL_AGAIN:\n"
    "  setp.ge.u32 %q, %i, %n;\n"
    "  @%q bra FILL_END;\n"
    "  st.global.u32 [%p], %v;\n"
    "  add.u64 %p, %p, 4;\n"
    "  add.u32 %i, %i, 1;\n"
    "  bra FILL_AGAIN;\n"
    "FILL_END:\n"
    "  ret;\n"
    "}\n"
    "// echo(bell): bell[1] = bell[0] whenever bell[0] changes, until it is 0xffffffff\n"
    ".visible .entry echo(.param .u64 echo_bell)\n"
    "{\n"
    "  .reg .pred %q; .reg .b32 %v; .reg .b64 %p;\n"
    "  ld.param.u64 %p, [echo_bell];\n"
    "  cvta.to.global.u64 %p, %p;\n"
    "ECHO_AGAIN:\n"
    "  ld.acquire.sys.global.u32 %v, [%p];\n"
    "  st.release.sys.global.u32 [%p+4], %v;\n"
    "  setp.ne.u32 %q, %v, 0xffffffff;\n"
    "  @%q bra ECHO_AGAIN;\n"
    "  ret;\n"
    "}\n"
    "/* a kernel that has no body in the fake */\n"
    ".visible .entry bodyless(.param .align 8 .b8 bodyless_s[24])\n"
    "{\n"
    "  ret;\n"
    "}\n";
