/* Devices, ports, and the life of objects: what may be created, what refuses to go before what. */
#include "check.h"

#include <endian.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void pd_busy(void)
{
	struct ibv_pd *pd = PTR(ibv_alloc_pd(ctx));
	char *p = aligned_alloc(4096, 4096);
	struct ibv_mr *mr = PTR(ibv_reg_mr(pd, p, 4096, IBV_ACCESS_LOCAL_WRITE));
	MUST(mr->addr == p && mr->length == 4096 && mr->pd == pd && mr->context == ctx, "the region's fields are wrong");
	int e = ibv_dealloc_pd(pd);
	say("%s", errname(e));
	MUST(e != 0, "a domain with a region was freed");
	ZERO(ibv_dereg_mr(mr));
	ZERO(ibv_dealloc_pd(pd));
	free(p);
}

static void cq_busy(void)
{
	side_open(&L, ALL);
	L.qp = make_qp(&L);
	int e = ibv_destroy_cq(L.cq);
	MUST(e != 0, "a completion queue in use was destroyed");
	say("%s", errname(e));
	side_close(&L);
}

static void channel_busy(void)
{
	side_open(&L, ALL);
	int e = ibv_destroy_comp_channel(L.ch);
	MUST(e != 0, "a channel in use was destroyed");
	say("%s", errname(e));
	side_close(&L);
}

static void refused(struct ibv_pd *pd, void *p, size_t n, unsigned access, const char *what)
{
	errno = 0;
	struct ibv_mr *mr = ibv_reg_mr(pd, p, n, access);
	MUST(!mr, "%s was registered", what);
	say("%s", errname(errno));
}

static void mr_unmapped(void)
{
	struct ibv_pd *pd = PTR(ibv_alloc_pd(ctx));
	char *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(p + 4096, 4096);
	refused(pd, p, 8192, IBV_ACCESS_LOCAL_WRITE, "memory that is not there");
	munmap(p, 4096);
	ZERO(ibv_dealloc_pd(pd));
}

static void mr_read_only(void)
{
	struct ibv_pd *pd = PTR(ibv_alloc_pd(ctx));
	char *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	refused(pd, p, 4096, IBV_ACCESS_LOCAL_WRITE, "read-only memory, for writing,");
	struct ibv_mr *mr = PTR(ibv_reg_mr(pd, p, 4096, IBV_ACCESS_REMOTE_READ));
	ZERO(ibv_dereg_mr(mr));
	munmap(p, 4096);
	ZERO(ibv_dealloc_pd(pd));
}

static void mr_access(void)
{
	struct ibv_pd *pd = PTR(ibv_alloc_pd(ctx));
	char *p = aligned_alloc(4096, 4096);
	refused(pd, p, 4096, IBV_ACCESS_REMOTE_WRITE, "remote write without local write");
	say(" ");
	refused(pd, p, 4096, IBV_ACCESS_REMOTE_ATOMIC, "remote atomics without local write");
	ZERO(ibv_dealloc_pd(pd));
	free(p);
}

static void mr_odp(void)
{
	struct ibv_pd *pd = PTR(ibv_alloc_pd(ctx));
	char *p = aligned_alloc(4096, 4096);
	refused(pd, p, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND, "on-demand paging, which the device does not have,");
	ZERO(ibv_dealloc_pd(pd));
	free(p);
}

static void mr_keys(void)
{
	struct ibv_pd *pd = PTR(ibv_alloc_pd(ctx));
	char *p = aligned_alloc(4096, 4096);
	uint32_t keys[64];
	for (int i = 0; i < 64; i++) {
		struct ibv_mr *mr = PTR(ibv_reg_mr(pd, p, 4096, ALL));
		keys[i] = mr->rkey;
		for (int k = 0; k < i; k++)
			MUST(keys[k] != mr->rkey, "the key of a region that was just freed comes back after %d registrations", i - k);
		ZERO(ibv_dereg_mr(mr));
	}
	ZERO(ibv_dealloc_pd(pd));
	free(p);
}

static void cq_limits(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, dev_attr.max_cqe + 1, NULL, NULL, 0);
	MUST(!cq, "max_cqe + 1 entries");
	say("%s", errname(errno));
	cq = ibv_create_cq(ctx, 0, NULL, NULL, 0);
	MUST(!cq, "a queue of 0 entries");
	say(" %s", errname(errno));
	cq = ibv_create_cq(ctx, 10, NULL, NULL, ctx->num_comp_vectors);
	MUST(!cq, "a vector too far");
	say(" %s", errname(errno));
	cq = PTR(ibv_create_cq(ctx, 10, NULL, NULL, 0));
	MUST(cq->cqe >= 10, "cqe %d", cq->cqe);
	ZERO(ibv_resize_cq(cq, 100));
	MUST(cq->cqe >= 100, "cqe %d after a resize to 100", cq->cqe);
	ZERO(ibv_destroy_cq(cq));
}

static void qp_limits(void)
{
	side_open(&L, ALL);
	for (int i = 0; i < 3; i++) {
		struct ibv_qp_init_attr a = {.send_cq = L.cq, .recv_cq = L.cq, .qp_type = IBV_QPT_RC,
			.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
		if (i == 0)
			a.cap.max_send_wr = (uint32_t)dev_attr.max_qp_wr + 1;
		else if (i == 1)
			a.cap.max_send_sge = (uint32_t)dev_attr.max_sge + 1;
		else
			a.cap.max_inline_data = 1 << 24;
		struct ibv_qp *qp = ibv_create_qp(L.pd, &a);
		MUST(!qp, "limit %d was passed", i);
		say("%s%s", i ? " " : "", errname(errno));
	}
	side_close(&L);
}

const struct check checks_objects[] = { {"pd-busy", pd_busy, false}, {"cq-busy", cq_busy, false},
	{"channel-busy", channel_busy, false}, {"mr-unmapped", mr_unmapped, false}, {"mr-read-only", mr_read_only, false}, {"mr-access", mr_access, false},
	{"mr-odp", mr_odp, false}, {"mr-keys", mr_keys, false},
	{"cq-limits", cq_limits, false}, {"qp-limits", qp_limits, false}, {NULL, NULL, false}};
