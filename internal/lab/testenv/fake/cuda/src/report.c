/* What was done wrong, and what is still alive. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state.h"

#define KEEP 1000 /* lines; what comes later is only counted */
static char *lines[KEEP];
static int nlines, nviolations;

static void add(const char *what, const call *c, const char *format, va_list args) {
    if (nlines == KEEP) return;
    char text[600];
    vsnprintf(text, sizeof text, format, args);
    if (asprintf(&lines[nlines], "%s: call %llu, %s, thread %d: %s\n", what, (unsigned long long)G.calls,
                 c == NULL ? "a queued operation" : call_names[c->fn], gettid(), text) >= 0)
        nlines++;
}

void violation(const call *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    nviolations++;
    add("violation", c, format, args);
    va_end(args);
}

/* What is allowed but not what its author may believe. */
void warning_(const call *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    add("warning", c, format, args);
    va_end(args);
}

CUresult bad(const call *c, CUresult r, const char *format, ...) {
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *name = result_name((int)r);
    violation(c, "%s: %s", name, text);
    return r;
}

const char *show_origin(origin o, char *buf, size_t n) {
    snprintf(buf, n, "call %llu, %s, thread %d", (unsigned long long)o.call, call_names[o.fn], o.tid);
    return buf;
}

void report_forget(void) {
    for (int i = 0; i < nlines; i++) free(lines[i]);
    nlines = nviolations = 0;
}

struct text { char *buf; size_t n, len; int live; };

static void put(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    size_t room = t->len < t->n ? t->n - t->len : 0;
    int len = vsnprintf(room > 0 ? t->buf + t->len : NULL, room, format, args);
    va_end(args);
    if (len > 0) t->len += (size_t)len;
}

static void live(struct text *t, const char *what, uint64_t h, size_t size, origin o) {
    char who[128];
    t->live++;
    if (size > 0)
        put(t, "live: %s %#llx of %zu bytes (%s)\n", what, (unsigned long long)h, size, show_origin(o, who, sizeof who));
    else
        put(t, "live: %s %#llx (%s)\n", what, (unsigned long long)h, show_origin(o, who, sizeof who));
}

static void live_object(object *o, void *arg) {
    static const char *const names[T_COUNT] = {"", "context", "stream", "event", "module", "", "memory handle"};
    if (o->kind == T_FUNCTION) return; /* lives with its module */
    if (o->kind == T_STREAM && (((stream *)o)->legacy || ((stream *)o)->thread_own || ((stream *)o)->closing)) return;
    if (o->kind == T_CONTEXT && (((context *)o)->dead || ((context *)o)->is_primary)) return;
    if (o->kind == T_PHYS && ((phys *)o)->released) return;
    live(arg, names[o->kind], o->handle, o->kind == T_PHYS ? ((phys *)o)->slab->size : 0, o->born);
}

static void live_alloc(alloc *a, void *arg) {
    static const char *const names[] = {"device memory", "opened IPC memory", "mapping", "", "address reservation"};
    if (a->kind != A_ALIAS && !a->module_global) live(arg, names[a->kind], a->base, a->size, a->born);
}

static void live_host(host *h, void *arg) {
    live(arg, h->registered ? "registered host memory" : "pinned host memory", (uint64_t)(uintptr_t)h->p, h->size, h->born);
}

static void all_live(struct text *t) {
    for (int i = 0; i < G.ndevices; i++)
        for (int k = 0; k < G.dev[i].retained; k++) {
            t->live++;
            put(t, "live: primary context of device %d, retained and not released\n", i);
        }
    objects_each(live_object, t);
    allocs_each(live_alloc, t);
    hosts_each(live_host, t);
}

size_t penstock_fake_cuda_report(char *buf, size_t n) {
    struct text t = {buf, n, 0, 0};
    pthread_mutex_lock(&G.mu);
    if (n > 0) *buf = 0;
    for (int i = 0; i < nlines; i++) put(&t, "%s", lines[i]);
    if (nlines == KEEP) put(&t, "warning: more than %d lines; the rest was only counted\n", KEEP);
    all_live(&t);
    pthread_mutex_unlock(&G.mu);
    return t.len;
}

int penstock_fake_cuda_violations(void) {
    pthread_mutex_lock(&G.mu);
    int n = nviolations;
    pthread_mutex_unlock(&G.mu);
    return n;
}

int penstock_fake_cuda_live(void) {
    struct text t = {0};
    pthread_mutex_lock(&G.mu);
    all_live(&t);
    pthread_mutex_unlock(&G.mu);
    return t.live;
}
