/*
 * The bodies, for the fake driver, of the kernels of internal/kernels: their OpenCL C text, compiled as C. A group has one item here, which every kernel allows
 * (its result does not depend on the grid), so that barriers have nothing to do. This says nothing of the PTX, which is made of the same text.
 */
#include <stdint.h>
#include <time.h>

#include "fake.h"

#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wunknown-pragmas"

typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef unsigned short ushort;
typedef _Float16 half;
typedef uint uint4 __attribute__((vector_size(16)));

#define __global
#define __local
#define __kernel
#define CLK_LOCAL_MEM_FENCE 0
#define CLK_GLOBAL_MEM_FENCE 0
#define barrier(x) ((void)(x))
#define mem_fence(x) __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define atomic_add(p, v) __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)

static __thread uint group, groups;
#define as_uint(f) ((union { float from; uint to; }){(f)}.to)
#define as_ulong(d) ((union { double from; ulong to; }){(d)}.to)
#define vstore_half_rte(f, i, p) ((void)((p)[i] = (half)(f)))
#define rint(x) ((x) < 0x1p51 && (x) > -0x1p51 ? ((x) + 0x1.8p52) - 0x1.8p52 : (x)) /* to even, without libm */
#define get_local_id(d) 0
#define get_local_size(d) 1
#define get_group_id(d) group
#define get_num_groups(d) groups

#include "penstock.h"
#undef KERNEL
#define KERNEL(name) static void cl_##name

#include "checksum.cl"
#include "copy.cl"
#include "fill.cl"
#include "gather.cl"
#include "process.cl"
#include "reorder.cl"
#include "resident.h"
#include "scatter.cl"

#define BODY(name) __attribute__((visibility("default"))) void name(const penstock_fake_cuda_launch *l)
#define ARG(type, i) (*(type *)l->params[i])

static uchar none[1];

/* The bytes behind argument i, from off. The pointer stands for the buffer's beginning. NULL ends the kernel, whose context has failed. */
#define VIEW(to, i, off, n, write) \
    uchar *to = (n) == 0 ? none : l->view(l, ARG(uint64_t, i) + (off), (n), (write)); \
    if (to == NULL) return; \
    to -= (off)
#define EACH_GROUP(call) \
    do { \
        groups = l->grid[0]; \
        for (group = 0; group < groups; group++) call; \
    } while (0)

BODY(copy) {
    ulong dst_off = ARG(ulong, 1), src_off = ARG(ulong, 3), n = ARG(ulong, 4);
    VIEW(dst, 0, dst_off, n, 1);
    {
        VIEW(src, 2, src_off, n, 0);
        EACH_GROUP(cl_copy(dst, dst_off, src, src_off, n));
    }
}

BODY(fill) {
    ulong off = ARG(ulong, 1), n = ARG(ulong, 2);
    VIEW(dst, 0, off, n, 1);
    EACH_GROUP(cl_fill(dst, off, n, ARG(ulong, 3)));
}

BODY(gather) {
    VIEW(dst, 0, 0, ARG(ulong, 1), 1);
    {
        VIEW(src, 3, 0, ARG(ulong, 4), 0);
        {
            VIEW(pieces, 5, 0, 16 * (ulong)ARG(uint, 6), 0);
            {
                VIEW(refused, 7, 0, 4, 1);
                EACH_GROUP(cl_gather(dst, ARG(ulong, 1), ARG(ulong, 2), src, ARG(ulong, 4), (const ps_piece *)(void *)pieces, ARG(uint, 6), (uint *)(void *)refused));
            }
        }
    }
}

BODY(scatter) {
    VIEW(dst, 0, 0, ARG(ulong, 1), 1);
    {
        VIEW(pieces, 2, 0, 16 * (ulong)ARG(uint, 3), 0);
        {
            VIEW(src, 4, 0, ARG(ulong, 5), 0);
            {
                VIEW(refused, 7, 0, 4, 1);
                EACH_GROUP(cl_scatter(dst, ARG(ulong, 1), (const ps_piece *)(void *)pieces, ARG(uint, 3), src, ARG(ulong, 5), ARG(ulong, 6), (uint *)(void *)refused));
            }
        }
    }
}

BODY(checksum) {
    ulong count = ARG(uint, 4);
    VIEW(sums, 0, 0, 4 * count, 1);
    {
        VIEW(src, 1, 0, ARG(ulong, 2), 0);
        {
            VIEW(pieces, 3, 0, 16 * count, 0);
            EACH_GROUP(cl_checksum((uint *)(void *)sums, src, ARG(ulong, 2), (const ps_piece *)(void *)pieces, ARG(uint, 4)));
        }
    }
}

BODY(process) {
    ulong stride = ARG(ulong, 2), count = ARG(uint, 3);
    VIEW(results, 0, 0, 24 * count, 1);
    {
        VIEW(slots, 1, 0, stride * count, 0);
        EACH_GROUP(cl_process((uint *)(void *)results, slots, stride, ARG(uint, 3)));
    }
}

/* The table ends behind the last of its entries, and the bitmaps that gaps name. */
BODY(reorder) {
    ulong end = ARG(ulong, 18) + 4, per;
    for (int i = 12; i < 18; i += 2) {
        ulong to = ARG(ulong, i) + sizeof(ps_move) * ARG(uint, i + 1);
        if (end < to) end = to;
    }
    VIEW(plan, 11, 0, sizeof(ps_plan), 0);
    per = ((const ps_plan *)(void *)plan)->per;
    {
        VIEW(first, 10, 0, end, 0);
        for (uint i = 0; i < ARG(uint, 15); i++) {
            ulong to = ((const ps_gap *)(void *)(first + ARG(ulong, 14)))[i].mask + (per + 7) / 8;
            if (end < to) end = to;
        }
    }
    VIEW(table, 10, 0, end, 1);
    VIEW(dst, 0, 0, ARG(ulong, 1), 1);
    VIEW(src0, 2, 0, ARG(ulong, 3), 0);
    VIEW(src1, 4, 0, ARG(ulong, 5), 0);
    VIEW(src2, 6, 0, ARG(ulong, 7), 0);
    VIEW(src3, 8, 0, ARG(ulong, 9), 0);
    EACH_GROUP(cl_reorder(dst, ARG(ulong, 1), src0, ARG(ulong, 3), src1, ARG(ulong, 5), src2, ARG(ulong, 7), src3, ARG(ulong, 9), table, (const ps_plan *)(void *)plan,
        ARG(ulong, 12), ARG(uint, 13), ARG(ulong, 14), ARG(uint, 15), ARG(ulong, 16), ARG(uint, 17), ARG(ulong, 18)));
}

__attribute__((visibility("default"))) const int hold_resident = 1;

/* By hand, since the fake asks a persistent kernel to look whether its context ends, and to leave the CPU to others meanwhile. */
BODY(hold) {
    VIEW(words, 0, 0, 8, 1);
    uint32_t *w = (uint32_t *)(void *)words;
    __atomic_store_n(w + 1, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(w, __ATOMIC_ACQUIRE) == 0 && !l->stopping(l)) nanosleep(&(struct timespec){0, 20000}, NULL);
}

__attribute__((visibility("default"))) const int tally_resident = 1;

/* By hand for the same reason: the groups make their passes in turns. */
BODY(tally) {
    groups = l->grid[0];
    VIEW(block, 0, 0, sizeof(ps_control) + groups * sizeof(ps_group), 1);
    {
        VIEW(words, 1, 0, 4 * (1 + (ulong)groups), 1);
        uint32_t *w = (uint32_t *)(void *)words, verdict[2];
        ps_resident r[groups];
        uint count[groups], did[groups], left = groups;
        for (group = 0; group < groups; group++) {
            r[group] = ps_enter((ps_control *)(void *)block, verdict);
            count[group] = r[group].line->checkpoint[0];
            did[group] = 0;
        }
        while (left > 0 && !l->stopping(l)) {
            uint busy = 0;
            for (group = 0; group < groups; group++) {
                if (r[group].state > PS_RUNNING) continue;
                if (!ps_pass(&r[group], did[group])) {
                    r[group].line->checkpoint[0] = count[group];
                    ps_leave(&r[group]);
                    left--;
                    continue;
                }
                did[group] = count[group] != __atomic_load_n(w, __ATOMIC_ACQUIRE);
                if (did[group]) __atomic_store_n(w + 1 + group, ++count[group], __ATOMIC_RELEASE);
                busy |= did[group];
            }
            if (!busy) nanosleep(&(struct timespec){0, 20000}, NULL);
        }
    }
}
