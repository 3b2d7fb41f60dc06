/* The check program: every check runs in a process of its own, loads the driver by path and uses its exported symbols only. */
#ifndef PENSTOCK_CHECK_H
#define PENSTOCK_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"
#include "fake.h"

/* d.cuInit and so on: what dlsym found, NULL where the driver is too old. */
struct driver {
#define X(symbol, base, since, args) CUresult(*symbol) args;
    CUDA_CALLS(X)
#undef X
    int (*kernel)(const char *, penstock_fake_cuda_fn, unsigned int);
    int (*script)(const char *);
    const char *(*script_error)(void);
    size_t (*report)(char *, size_t);
    int (*violations)(void);
    int (*live)(void);
    long (*calls)(const char *);
    int (*restart)(void);
};
extern struct driver d;
extern const char *library;

enum { PUBLIC, FAKE };
struct check { const char *name; int kind; void (*run)(void); struct check *next; };
void check_add(struct check *);

#define CHECK_(kind_, id) \
    static void id(void); \
    __attribute__((constructor)) static void add_##id(void) { \
        static struct check c = {#id, kind_, id, NULL}; \
        check_add(&c); \
    } \
    static void id(void)
/* A check of what any driver does, and one that asks the fake. */
#define CHECK(id) CHECK_(PUBLIC, id)
#define CHECK_FAKE(id) CHECK_(FAKE, id)

void fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));
void skip(const char *why) __attribute__((noreturn));
#define TRUE(x) ((x) ? (void)0 : fail(__FILE__, __LINE__, "%s is false", #x))
#define IS(want, x) \
    do { \
        long long w_ = (long long)(want), g_ = (long long)(x); \
        if (w_ != g_) fail(__FILE__, __LINE__, "%s = %lld, want %lld (%s)", #x, g_, w_, #want); \
    } while (0)
#define OK(x) IS(CUDA_SUCCESS, x)
/* A mistake: the fake refuses it with this result, and reports it in these words. */
#define CAUGHT(want, text, x) \
    do { \
        IS(want, x); \
        expect_violation(text); \
    } while (0)

void load(void);                     /* the library, without cuInit */
CUcontext start(void);               /* load, cuInit, a new context on device 0, current */
int attribute(int a);                /* of device 0 */
void *thread(void *(*f)(void *), void *arg); /* runs f in a thread and waits */
CUdeviceptr buffer(size_t n, int byte);
CUfunction kernel(const char *name); /* of the program's PTX, in the current context */
extern const char ptx[];
void launch1(CUfunction f, CUstream s, void **params);
void expect_words(CUdeviceptr p, uint32_t value, size_t n);
/* the fake: exactly this many violations so far, and the last report has this text */
void expect_violation(const char *text);
void expect_clean(void);
bool reported(const char *text); /* anywhere in the report */

#endif
