/*
 * Addresses. A device address is a place in a reservation that the CPU cannot touch (PROT_NONE). What the memory behind it
 * holds is mapped at the same offset of a second reservation, the shadow, which only operations of the driver and kernels see.
 * Addresses are handed out upwards and come round again only at the end of the reservation, so that stale ones are noticed.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#endif

#define HANDLES ((size_t)4 << 30)

typedef struct span { uint64_t base; size_t size; } span;

static span *spans; /* of the reservation that are taken, by address */
static size_t nspans, cap_spans;
static alloc **allocs; /* that live there, by address; reservations of cuMemAddressReserve apart */
static size_t nallocs, cap_allocs;
static alloc **resvs;
static size_t nresvs, cap_resvs;
static host **hosts;
static size_t nhosts, cap_hosts;
static uint64_t cursor;

#define FREED 1024
static struct { uint64_t base; size_t size; origin by; } freed[FREED];
static unsigned nfreed;

static void *grow(void *v, size_t n, size_t *cap, size_t each) {
    if (n < *cap) return v;
    *cap = *cap == 0 ? 64 : *cap * 2;
    v = realloc(v, *cap * each);
    if (v == NULL) abort();
    return v;
}

static void *reserve(size_t n) {
    void *p = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

bool ranges_init(void) {
    if (G.dev_base != 0) return true;
    /* thread sanitizer's own memory grows with what is reserved */
#if defined(__SANITIZE_THREAD__)
    size_t size = (size_t)64 << 30;
#else
    size_t size = (size_t)1 << 40;
#endif
    char *handles = reserve(HANDLES);
    if (handles == NULL) return false;
    for (; size >= (size_t)1 << 32; size /= 2) {
        char *both = reserve(2 * size + BLOCK);
        if (both == NULL) continue;
        G.handle_base = (uint64_t)(uintptr_t)handles;
        G.dev_base = ((uint64_t)(uintptr_t)both + BLOCK - 1) & ~(uint64_t)(BLOCK - 1);
        G.shadow_base = G.dev_base + size;
        G.dev_size = size;
        cursor = G.dev_base;
        return true;
    }
    munmap(handles, HANDLES);
    return false;
}

bool is_device(uint64_t p) { return p - G.dev_base < G.dev_size && G.dev_base != 0; }
char *shadow(uint64_t p) { return (char *)(uintptr_t)(p - G.dev_base + G.shadow_base); }

/* The first span that ends after p. */
static size_t span_after(uint64_t p) {
    size_t lo = 0, hi = nspans;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (spans[mid].base + spans[mid].size <= p) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* Takes size bytes of addresses; 0 when there is no room. */
uint64_t va_take(size_t size, size_t align, uint64_t want) {
    if (align < BLOCK) align = BLOCK;
    if (size == 0 || size > G.dev_size) return 0;
    uint64_t end = G.dev_base + G.dev_size, p = 0;
    size_t i = 0;
    if (want != 0 && want % align == 0 && want >= G.dev_base && want <= end - size) {
        i = span_after(want);
        if (i == nspans || spans[i].base >= want + size) p = want;
    }
    for (int round = 0; p == 0 && round < 2; round++) {
        uint64_t q = ((round == 0 ? cursor : G.dev_base) + align - 1) & ~(uint64_t)(align - 1);
        for (i = span_after(q); q <= end - size; i++) {
            if (i == nspans || spans[i].base >= q + size) {
                p = q;
                cursor = q + size;
                break;
            }
            q = (spans[i].base + spans[i].size + align - 1) & ~(uint64_t)(align - 1);
        }
    }
    if (p == 0) return 0;
    spans = grow(spans, nspans, &cap_spans, sizeof *spans);
    i = span_after(p);
    memmove(&spans[i + 1], &spans[i], (nspans - i) * sizeof *spans);
    spans[i] = (span){p, size};
    nspans++;
    return p;
}

void va_give(uint64_t base) {
    size_t i = span_after(base);
    if (i == nspans || spans[i].base != base) return;
    memmove(&spans[i], &spans[i + 1], (--nspans - i) * sizeof *spans);
}

/* The first of v that ends after p. */
static size_t alloc_after(alloc **v, size_t n, uint64_t p) {
    size_t lo = 0;
    while (lo < n) {
        size_t mid = (lo + n) / 2;
        if (v[mid]->base + v[mid]->size <= p) lo = mid + 1;
        else n = mid;
    }
    return lo;
}

static void insert(alloc ***v, size_t *n, size_t *cap, alloc *a) {
    *v = grow(*v, *n, cap, sizeof **v);
    size_t i = alloc_after(*v, *n, a->base);
    memmove(*v + i + 1, *v + i, (*n - i) * sizeof **v);
    (*v)[i] = a;
    ++*n;
}

alloc *alloc_add(alloc_kind k, uint64_t base, size_t size, context *ctx, const call *c) {
    alloc *a = calloc(1, sizeof *a);
    if (a == NULL) abort();
    *a = (alloc){.kind = k, .base = base, .size = size, .ctx = ctx, .dev = ctx == NULL ? NULL : ctx->dev, .id = ++G.next_id};
    a->born = origin_now(c);
    if (k == A_RESERVATION) insert(&resvs, &nresvs, &cap_resvs, a);
    else insert(&allocs, &nallocs, &cap_allocs, a);
    return a;
}

void alloc_remove(alloc *a, const call *c) {
    alloc **v = a->kind == A_RESERVATION ? resvs : allocs;
    size_t *n = a->kind == A_RESERVATION ? &nresvs : &nallocs, i = alloc_after(v, *n, a->base);
    memmove(v + i, v + i + 1, (--*n - i) * sizeof *v);
    freed[nfreed % FREED].base = a->base;
    freed[nfreed % FREED].size = a->size;
    freed[nfreed++ % FREED].by = origin_now(c);
    free(a);
}

alloc *alloc_at(uint64_t p) {
    size_t i = alloc_after(allocs, nallocs, p);
    return i < nallocs && allocs[i]->base <= p ? allocs[i] : NULL;
}

alloc *alloc_in(uint64_t lo, uint64_t hi, alloc_kind k, int nth) {
    alloc **v = k == A_RESERVATION ? resvs : allocs;
    size_t n = k == A_RESERVATION ? nresvs : nallocs;
    for (size_t i = alloc_after(v, n, lo); i < n && v[i]->base < hi; i++)
        if (v[i]->base >= lo && v[i]->kind == k && nth-- == 0) return v[i];
    return NULL;
}

void allocs_each(void (*f)(alloc *, void *), void *arg) {
    for (size_t i = 0; i < nallocs; i++) f(allocs[i], arg);
    for (size_t i = 0; i < nresvs; i++) f(resvs[i], arg);
}

/* Who freed the memory that was at p last, or NULL. */
const char *freed_by(uint64_t p, char *buf, size_t n) {
    for (unsigned i = 0; i < FREED && i < nfreed; i++) {
        unsigned k = (nfreed - 1 - i) % FREED;
        if (p - freed[k].base < freed[k].size) return show_origin(freed[k].by, buf, n);
    }
    return NULL;
}

static size_t host_after(uint64_t p) {
    size_t lo = 0, n = nhosts;
    while (lo < n) {
        size_t mid = (lo + n) / 2;
        if ((uint64_t)(uintptr_t)hosts[mid]->p + hosts[mid]->size <= p) lo = mid + 1;
        else n = mid;
    }
    return lo;
}

host *host_overlap(uint64_t p, size_t n) {
    size_t i = host_after(p);
    return i < nhosts && (uint64_t)(uintptr_t)hosts[i]->p < p + n ? hosts[i] : NULL;
}

host *host_at(uint64_t p) { return host_overlap(p, 1); }

host *host_add(char *p, size_t n, const call *c) {
    host *h = calloc(1, sizeof *h);
    if (h == NULL) abort();
    *h = (host){.p = p, .size = n, .ctx = c->ctx, .dev = (uint64_t)(uintptr_t)p, .id = ++G.next_id, .born = origin_now(c)};
    hosts = grow(hosts, nhosts, &cap_hosts, sizeof *hosts);
    size_t i = host_after((uint64_t)(uintptr_t)p);
    memmove(&hosts[i + 1], &hosts[i], (nhosts - i) * sizeof *hosts);
    hosts[i] = h;
    nhosts++;
    return h;
}

void host_remove(host *h) {
    size_t i = host_after((uint64_t)(uintptr_t)h->p);
    memmove(&hosts[i], &hosts[i + 1], (--nhosts - i) * sizeof *hosts);
    free(h);
}

void hosts_each(void (*f)(host *, void *), void *arg) {
    for (size_t i = nhosts; i-- > 0;) f(hosts[i], arg); /* backwards: f may remove */
}

/* Physical memory of a device, NULL when it has no more. */
slab *slab_new(device *d, size_t size) {
    if (size > d->total - d->used) return NULL;
    int fd = memfd_create("penstock-fake-cuda", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        violation(NULL, "memfd_create: %m: each block of device memory needs a file descriptor (ulimit -n)");
        return NULL;
    }
    slab *s = calloc(1, sizeof *s);
    if (s == NULL || ftruncate(fd, (off_t)size) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        close(fd);
        free(s);
        return NULL;
    }
    *s = (slab){.fd = fd, .refs = 1, .size = size, .dev = d};
    d->used += size;
    return s;
}

/* Memory of another process, or of this one once more; takes the descriptor. */
slab *slab_import(int fd, size_t size) {
    slab *s = calloc(1, sizeof *s);
    if (s == NULL) abort();
    *s = (slab){.fd = fd, .refs = 1, .size = size};
    return s;
}

void slab_release(slab *s) {
    if (--s->refs > 0) return;
    if (s->dev != NULL) s->dev->used -= s->size;
    close(s->fd);
    free(s);
}

bool slab_map(slab *s, uint64_t base, size_t off, size_t size) {
    return mmap(shadow(base), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, s->fd, (off_t)off) != MAP_FAILED;
}

void slab_unmap(uint64_t base, size_t size) {
    if (mmap(shadow(base), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) abort();
}

static void forget_object(object *o, void *arg) {
    (void)arg;
    if (o->kind == T_PHYS) {
        ((phys *)o)->refs = 1;
        phys_unref((phys *)o);
    }
}

/* Forgets what survives the contexts: reservations, mappings and memory handles. */
void ranges_forget(void) {
    call c = {.fn = F_cuInit};
    while (nallocs > 0) {
        alloc *a = allocs[nallocs - 1];
        uint64_t base = a->base & ~(uint64_t)(BLOCK - 1);
        slab_unmap(base, (size_t)(a->base - base + a->size + BLOCK - 1) & ~(BLOCK - 1));
        if (a->kind == A_IPC || a->kind == A_ALIAS) va_give(base);
        if (a->slab != NULL) slab_release(a->slab);
        alloc_remove(a, &c);
    }
    while (nresvs > 0) {
        va_give(resvs[nresvs - 1]->base);
        alloc_remove(resvs[nresvs - 1], &c);
    }
    objects_each(forget_object, NULL);
    nfreed = 0;
}
