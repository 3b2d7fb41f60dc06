/* The script language, and what the devices are like before any script. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "state.h"

static const struct { const char *name; int id, value; } attributes[] = {
#define A(name, value) {#name, CU_DEVICE_ATTRIBUTE_##name, value}
    A(MAX_THREADS_PER_BLOCK, 1024), A(MAX_BLOCK_DIM_X, 1024), A(MAX_BLOCK_DIM_Y, 1024), A(MAX_BLOCK_DIM_Z, 64),
    A(MAX_GRID_DIM_X, 2147483647), A(MAX_GRID_DIM_Y, 65535), A(MAX_GRID_DIM_Z, 65535),
    A(MAX_SHARED_MEMORY_PER_BLOCK, 49152), A(TOTAL_CONSTANT_MEMORY, 65536), A(WARP_SIZE, 32), A(MAX_PITCH, 2147483647),
    A(MAX_REGISTERS_PER_BLOCK, 65536), A(CLOCK_RATE, 1410000), A(TEXTURE_ALIGNMENT, 512), A(MULTIPROCESSOR_COUNT, 108),
    A(KERNEL_EXEC_TIMEOUT, 0), A(INTEGRATED, 0), A(CAN_MAP_HOST_MEMORY, 1), A(COMPUTE_MODE, 0), A(CONCURRENT_KERNELS, 1),
    A(ECC_ENABLED, 1), A(PCI_BUS_ID, 0), A(PCI_DEVICE_ID, 0), A(PCI_DOMAIN_ID, 0), A(TCC_DRIVER, 0),
    A(MEMORY_CLOCK_RATE, 1215000), A(GLOBAL_MEMORY_BUS_WIDTH, 5120), A(L2_CACHE_SIZE, 41943040),
    A(MAX_THREADS_PER_MULTIPROCESSOR, 2048), A(ASYNC_ENGINE_COUNT, 3), A(UNIFIED_ADDRESSING, 1), A(TEXTURE_PITCH_ALIGNMENT, 32),
    A(COMPUTE_CAPABILITY_MAJOR, 8), A(COMPUTE_CAPABILITY_MINOR, 0), A(STREAM_PRIORITIES_SUPPORTED, 1),
    A(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 167936), A(MAX_REGISTERS_PER_MULTIPROCESSOR, 65536), A(MANAGED_MEMORY, 0),
    A(MULTI_GPU_BOARD, 0), A(MULTI_GPU_BOARD_GROUP_ID, 0), A(HOST_NATIVE_ATOMIC_SUPPORTED, 0), A(PAGEABLE_MEMORY_ACCESS, 0),
    A(CONCURRENT_MANAGED_ACCESS, 0), A(COMPUTE_PREEMPTION_SUPPORTED, 1), A(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
    A(CAN_USE_STREAM_MEM_OPS_V1, 1), A(CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1), A(CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 1),
    A(COOPERATIVE_LAUNCH, 1), A(CAN_FLUSH_REMOTE_WRITES, 0), A(HOST_REGISTER_SUPPORTED, 1),
    A(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1), A(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
    A(MAX_BLOCKS_PER_MULTIPROCESSOR, 32), A(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1), A(READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
    A(MEMORY_POOLS_SUPPORTED, 0), A(GPU_DIRECT_RDMA_SUPPORTED, 1),
    A(GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST),
    A(GPU_DIRECT_RDMA_WRITES_ORDERING, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER), A(CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
    A(CAN_USE_STREAM_WAIT_VALUE_NOR, 1), A(DMA_BUF_SUPPORTED, 1), A(IPC_EVENT_SUPPORTED, 1), A(NUMA_CONFIG, 0), A(NUMA_ID, -1),
    A(HOST_NUMA_ID, 0), A(HOST_ALLOC_DMA_BUF_SUPPORTED, 0),
#undef A
};

void devices_default(void) {
    G.ndevices = 2;
    G.driver = 12080;
    strcpy(G.name, "Penstock fake GPU");
    for (int d = 0; d < MAX_DEVICES; d++) {
        device *v = &G.dev[d];
        v->ordinal = d;
        v->total = (size_t)8 << 30;
        for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) v->attr[attributes[i].id] = attributes[i].value;
        v->attr[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] = 0x41 + d;
    }
}

void script_forget(void) {
    for (rule *u = G.rules, *next; u != NULL; u = next) {
        next = u->next;
        free(u);
    }
    G.rules = NULL;
    G.delay_copy = G.delay_launch = 0;
    G.resident_allowed = G.peers_off = false;
}

/* One line being read. */
struct line {
    const char *text, *p, *end;
    int number;
    char word[128];
    int column; /* of word, from 1 */
    bool apply;
    char *err;
    size_t errlen;
};

static bool word(struct line *l) {
    while (l->p < l->end && isspace((unsigned char)*l->p)) l->p++;
    l->column = (int)(l->p - l->text) + 1;
    size_t n = 0;
    while (l->p < l->end && !isspace((unsigned char)*l->p)) {
        if (n + 1 < sizeof l->word) l->word[n++] = *l->p;
        l->p++;
    }
    l->word[n] = 0;
    return n > 0;
}

static bool wrong(struct line *l, const char *expected) {
    snprintf(l->err, l->errlen, "line %d, column %d: expected %s, found %s%s%s", l->number, l->column, expected,
             *l->word ? "\"" : "the end of the line", l->word, *l->word ? "\"" : "");
    return false;
}

static bool number(struct line *l, long min, long max, long *out, const char *expected) {
    char *rest;
    if (!word(l)) return wrong(l, expected);
    errno = 0;
    *out = strtol(l->word, &rest, 0);
    return *rest != 0 || errno != 0 || *out < min || *out > max ? wrong(l, expected) : true;
}

static bool last(struct line *l) { return word(l) ? wrong(l, "the end of the line") : true; }

/* A call by its exported name, or by the one without the suffix of its version, which means every version. */
static bool a_call(struct line *l, int *fn, int *alt) {
    if (!word(l)) return wrong(l, "a driver call, or * for any");
    *fn = *alt = -1;
    if (strcmp(l->word, "*") == 0) return true;
    size_t n = strlen(l->word);
    for (int i = 0; i < F_COUNT; i++)
        if (strcmp(call_names[i], l->word) == 0 || (strncmp(call_names[i], l->word, n) == 0 && strncmp(call_names[i] + n, "_v", 2)
            == 0)) {
            if (*fn < 0) *fn = i;
            *alt = i;
        }
    return *fn >= 0 ? true : wrong(l, "a driver call that the fake has, such as cuMemAlloc, or * for any");
}

static bool a_result(struct line *l, CUresult *r) {
    static const char expected[] = "a result other than success, as CUDA_ERROR_ILLEGAL_ADDRESS, ILLEGAL_ADDRESS or 700";
    char *rest;
    if (!word(l)) return wrong(l, expected);
    long n = strtol(l->word, &rest, 10);
    if (*rest == 0 && n > 0 && n < 10000 && result_name((int)n) != NULL) {
        *r = (CUresult)n;
        return true;
    }
#define X(name, value, text) \
    if (value != 0 && (strcmp(l->word, #name) == 0 || strcmp(l->word, &#name[value == 0 ? 0 : sizeof "CUDA_ERROR"]) == 0)) { \
        *r = name; \
        return true; \
    }
    CUDA_RESULTS(X)
#undef X
    return wrong(l, expected);
}

static bool a_size(struct line *l, size_t *size) {
    static const char expected[] = "a size of at least 2 MiB, such as 512M or 80G";
    char *rest;
    if (!word(l)) return wrong(l, expected);
    errno = 0;
    unsigned long long n = strtoull(l->word, &rest, 10);
    int shift = *rest == 'K' ? 10 : *rest == 'M' ? 20 : *rest == 'G' ? 30 : 0;
    if (shift != 0) rest++;
    if (*rest != 0 || errno != 0 || l->word[0] == '-' || n > (1ULL << 44) >> shift || n << shift < BLOCK) return wrong(l, expected);
    *size = (size_t)(n << shift);
    return true;
}

static bool a_duration(struct line *l, long *us) {
    static const char expected[] = "a duration up to 60s, such as 20ms, 500us or 0s";
    char *rest;
    if (!word(l)) return wrong(l, expected);
    long n = strtol(l->word, &rest, 10);
    long unit = strcmp(rest, "us") == 0 ? 1 : strcmp(rest, "ms") == 0 ? 1000 : strcmp(rest, "s") == 0 ? 1000000 : 0;
    if (unit == 0 || n < 0 || rest == l->word || n > 60000000 / unit) return wrong(l, expected);
    *us = n * unit;
    return true;
}

static bool a_choice(struct line *l, const char *yes, const char *no, bool *out) {
    char expected[64];
    snprintf(expected, sizeof expected, "%s or %s", yes, no);
    if (!word(l)) return wrong(l, expected);
    *out = strcmp(l->word, yes) == 0;
    return *out || strcmp(l->word, no) == 0 ? true : wrong(l, expected);
}

static bool a_rule(struct line *l, bool sticky) {
    int fn = -1, alt = -1;
    CUresult r = CUDA_SUCCESS;
    long at = 1;
    if (!a_call(l, &fn, &alt)) return false;
    const char *back = l->p;
    if (word(l) && strcmp(l->word, "always") == 0) {
        at = -1;
    } else if (strcmp(l->word, "call") == 0) {
        if (!number(l, 1, 1000000000, &at, "the number of the call, from 1")) return false;
    } else {
        l->p = back; /* no count: the next call */
    }
    if (!a_result(l, &r) || !last(l)) return false;
    if (!l->apply) return true;
    rule *u = calloc(1, sizeof *u), **end = &G.rules;
    if (u == NULL) abort();
    *u = (rule){fn, alt, at, r, sticky, NULL};
    while (*end != NULL) end = &(*end)->next;
    *end = u;
    return true;
}

static bool a_device(struct line *l) {
    long d = -1;
    if (!word(l)) return wrong(l, "the number of a device, or *");
    if (strcmp(l->word, "*") != 0) {
        char *rest;
        d = strtol(l->word, &rest, 10);
        if (*rest != 0 || d < 0 || d >= MAX_DEVICES) return wrong(l, "the number of a device from 0 to 15, or *");
    }
    static const char expected[] = "memory or attribute";
    if (!word(l)) return wrong(l, expected);
    size_t total = 0;
    int id = -1;
    long value = 0;
    if (strcmp(l->word, "memory") == 0) {
        if (!a_size(l, &total)) return false;
    } else if (strcmp(l->word, "attribute") == 0) {
        if (!word(l)) return wrong(l, "an attribute, such as DMA_BUF_SUPPORTED or 124");
        char *rest;
        long n = strtol(l->word, &rest, 10);
        if (*rest == 0 && n > 0 && n < CU_DEVICE_ATTRIBUTE_MAX) id = (int)n;
        const char *plain = strncmp(l->word, "CU_DEVICE_ATTRIBUTE_", 20) == 0 ? l->word + 20 : l->word;
        for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
            if (strcmp(attributes[i].name, plain) == 0) id = attributes[i].id;
        if (id < 0) return wrong(l, "an attribute that the fake knows, such as DMA_BUF_SUPPORTED, or its number");
        if (!number(l, -2147483647, 2147483647, &value, "the attribute's value, a number")) return false;
    } else {
        return wrong(l, expected);
    }
    if (!last(l)) return false;
    if (!l->apply) return true;
    for (int i = 0; i < MAX_DEVICES; i++) {
        if (d >= 0 && i != d) continue;
        if (total > 0) G.dev[i].total = total;
        if (id >= 0) G.dev[i].attr[id] = (int)value;
    }
    return true;
}

static bool a_line(struct line *l) {
    long n;
    bool on;
    if (!word(l) || l->word[0] == '#') return true;
    if (strcmp(l->word, "fail") == 0) return a_rule(l, false);
    if (strcmp(l->word, "sticky") == 0) return a_rule(l, true);
    if (strcmp(l->word, "device") == 0) return a_device(l);
    if (strcmp(l->word, "devices") == 0) {
        if (!number(l, 0, MAX_DEVICES, &n, "how many devices, from 0 to 16")) return false;
        if (G.initialised && n != G.ndevices) return wrong(l, "devices before cuInit");
        if (l->apply) G.ndevices = (int)n;
        return last(l);
    }
    if (strcmp(l->word, "driver") == 0) {
        if (!number(l, 5000, 99990, &n, "a driver version as cuDriverGetVersion gives it, such as 12040")) return false;
        if (l->apply) G.driver = (int)n;
        return last(l);
    }
    if (strcmp(l->word, "latency") == 0) {
        if (!a_choice(l, "copy", "launch", &on) || !a_duration(l, &n)) return false;
        if (l->apply) *(on ? &G.delay_copy : &G.delay_launch) = n;
        return last(l);
    }
    if (strcmp(l->word, "peers") == 0) {
        if (!a_choice(l, "on", "off", &on)) return false;
        if (l->apply) G.peers_off = !on;
        return last(l);
    }
    if (strcmp(l->word, "resident") == 0) {
        if (!a_choice(l, "allow", "refuse", &on)) return false;
        if (l->apply) G.resident_allowed = on;
        return last(l);
    }
    return wrong(l, "fail, sticky, device, devices, driver, latency, peers or resident");
}

/* Reads twice: a script with a mistake changes nothing. */
int script_run(const char *text, char *err, size_t n) {
    for (int apply = 0; apply <= 1; apply++) {
        struct line l = {.apply = apply != 0, .err = err, .errlen = n};
        for (const char *p = text;; p = l.end + 1) {
            l.number++;
            l.text = l.p = p;
            l.end = p + strcspn(p, ";\n");
            if (!a_line(&l)) return -1;
            if (*l.end == 0) break;
        }
    }
    return 0;
}

static char script_error[256];

int penstock_fake_cuda_script(const char *script) {
    pthread_mutex_lock(&G.mu);
    if (script == NULL || *script == 0) script_forget();
    int r = script == NULL ? 0 : script_run(script, script_error, sizeof script_error);
    if (r == 0) *script_error = 0;
    pthread_mutex_unlock(&G.mu);
    return r;
}

const char *penstock_fake_cuda_script_error(void) { return script_error; }
