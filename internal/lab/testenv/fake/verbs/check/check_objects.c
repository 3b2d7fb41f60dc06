/* Devices, ports, and the life of objects: what may be created, what refuses to go before what. */
#include "check.h"

#include <endian.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void device(void)
{
	MUST(ibv_get_device_guid(ctx->device) != 0, "the GUID is zero");
	MUST(dev_attr.phys_port_cnt >= 1 && dev_attr.max_qp > 0 && dev_attr.max_qp_wr > 0 && dev_attr.max_sge > 0 && dev_attr.max_cqe > 0 &&
	     dev_attr.max_mr > 0 && dev_attr.max_pd > 0 && dev_attr.max_mr_size > 0, "an attribute is zero");
	struct ibv_device_attr_ex x;
	ZERO(ibv_query_device_ex(ctx, NULL, &x));
	MUST(x.orig_attr.max_qp == dev_attr.max_qp, "query_device_ex differs");
	MUST(ctx->num_comp_vectors >= 1 && ctx->async_fd >= 0, "no vectors or no async_fd");
}

static void port(void)
{
	struct ibv_port_attr a;
	MUST(port_attr.state == IBV_PORT_ACTIVE, "the port is %s", ibv_port_state_str(port_attr.state));
	MUST(port_attr.active_mtu >= IBV_MTU_256 && port_attr.active_mtu <= port_attr.max_mtu, "MTU %d of %d", port_attr.active_mtu,
	     port_attr.max_mtu);
	MUST(port_attr.max_msg_sz >= 1 << 20 && port_attr.gid_tbl_len > 0 && port_attr.pkey_tbl_len > 0, "empty tables");
	say("%s beyond", errname(ibv_query_port(ctx, 77, &a)));
}

static void gids(void)
{
	struct ibv_gid_entry e, all[256];
	ssize_t n = ibv_query_gid_table(ctx, all, 256, 0);
	MUST(n > 0, "query_gid_table: %zd", n);
	for (ssize_t i = 0; i < n; i++) {
		union ibv_gid g;
		ZERO(ibv_query_gid_ex(ctx, all[i].port_num, all[i].gid_index, &e, 0));
		ZERO(ibv_query_gid(ctx, (uint8_t)e.port_num, (int)e.gid_index, &g));
		MUST(!memcmp(&g, &e.gid, 16) && !memcmp(&e.gid, &all[i].gid, 16), "GID %zd differs between three ways to ask", i);
	}
	MUST(ibv_query_gid(ctx, 1, 100000, &gid) != 0, "GID 100000 exists");
	__be16 pkey;
	ZERO(ibv_query_pkey(ctx, 1, 0, &pkey));
	MUST(be16toh(pkey) == 0xffff, "pkey 0x%x", be16toh(pkey));
	MUST(ibv_get_pkey_index(ctx, 1, pkey) == 0, "the pkey's index is not 0");
}

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

static void pd_busy_qp(void)
{
	side_open(&L, ALL);
	L.qp = make_qp(&L);
	ZERO(ibv_dereg_mr(L.mr));
	int e = ibv_dealloc_pd(L.pd);
	MUST(e != 0, "a domain with a queue pair was freed");
	say("%s", errname(e));
	L.mr = PTR(ibv_reg_mr(L.pd, L.buf, BUF, ALL));
	side_close(&L);
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

static void mr_relaxed(void)
{
	struct ibv_pd *pd = PTR(ibv_alloc_pd(ctx));
	char *p = aligned_alloc(4096, 4096);
	struct ibv_mr *mr = PTR(ibv_reg_mr(pd, p, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING));
	ZERO(ibv_dereg_mr(mr));
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

static void mr_rereg(void)
{
	struct ibv_pd *pd = PTR(ibv_alloc_pd(ctx));
	char *p = aligned_alloc(4096, 4096);
	struct ibv_mr *mr = PTR(ibv_reg_mr(pd, p, 4096, IBV_ACCESS_LOCAL_WRITE));
	int e = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL);
	int err = errno;
	ZERO(ibv_dereg_mr(mr));
	ZERO(ibv_dealloc_pd(pd));
	free(p);
	if (e)
		absent(err);
}

static void mr_dmabuf(void)
{
	struct ibv_pd *pd = PTR(ibv_alloc_pd(ctx));
	int fd = memfd_create("check", 0);
	MUST(fd >= 0 && ftruncate(fd, 8192) == 0, "memfd");
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, 8192, 0x10000, fd, ALL);
	int err = errno;
	close(fd);
	if (mr)
		ZERO(ibv_dereg_mr(mr));
	ZERO(ibv_dealloc_pd(pd));
	if (!mr)
		absent(err);
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

static void qp_raw(void)
{
	side_open(&L, ALL);
	struct ibv_qp_init_attr a = {.send_cq = L.cq, .recv_cq = L.cq, .qp_type = IBV_QPT_RAW_PACKET,
		.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *qp = ibv_create_qp(L.pd, &a);
	int err = errno;
	if (qp)
		ZERO(ibv_destroy_qp(qp));
	side_close(&L);
	if (!qp)
		absent(err);
}

static void qp_query(void)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	pair();
	MUST(L.qp->state == IBV_QPS_RTS && state_of(L.qp) == IBV_QPS_RTS, "not in RTS");
	ZERO(ibv_query_qp(L.qp, &a, IBV_QP_STATE | IBV_QP_DEST_QPN | IBV_QP_SQ_PSN | IBV_QP_AV | IBV_QP_CAP, &i));
	MUST(a.dest_qp_num == R.qp->qp_num && a.sq_psn == 7 && a.timeout == 14 && a.path_mtu == IBV_MTU_1024, "attributes are not as set");
	MUST(!memcmp(&a.ah_attr.grh.dgid, &gid, 16) && a.ah_attr.is_global, "the address vector is not as set");
	MUST(i.cap.max_send_wr >= 64 && i.send_cq == L.cq && i.qp_type == IBV_QPT_RC, "initial attributes are not as set");
	unpair();
}

/* Every transition that is not in the table must be refused, and those that are with a bit missing or one too many. */
static void qp_states(void)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	side_open(&L, ALL);
	L.qp = make_qp(&L);
	MUST(to_rtr(L.qp, 1, &gid, 0), "RESET to RTR");
	MUST(to_rts(L.qp, 0), "RESET to RTS");
	MUST(ibv_modify_qp(L.qp, &a, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX), "to INIT without access flags");
	MUST(ibv_modify_qp(L.qp, &a, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_QKEY),
	     "to INIT of RC with a qkey");
	a.port_num = 100;
	MUST(ibv_modify_qp(L.qp, &a, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS), "to INIT on port 100");
	ZERO(to_init(L.qp, ALL));
	MUST(to_rts(L.qp, 0), "INIT to RTS");
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .ah_attr = {.port_num = 1}};
	MUST(ibv_modify_qp(L.qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "to RTR on Ethernet without a GRH");
	ZERO(to_rtr(L.qp, L.qp->qp_num, &gid, 0));
	MUST(to_init(L.qp, ALL), "RTR to INIT");
	MUST(to_state(L.qp, IBV_QPS_RTS), "to RTS without its attributes");
	ZERO(to_rts(L.qp, 0));
	MUST(to_rtr(L.qp, 1, &gid, 0), "RTS to RTR");
	ZERO(to_state(L.qp, IBV_QPS_ERR));
	MUST(to_rts(L.qp, 0), "ERR to RTS");
	MUST(to_init(L.qp, ALL), "ERR to INIT");
	ZERO(to_state(L.qp, IBV_QPS_RESET));
	ZERO(to_init(L.qp, ALL));
	ZERO(to_state(L.qp, IBV_QPS_ERR));
	side_close(&L);
}

static void qp_many(void)
{
	struct ibv_qp *qps[200];
	side_open(&L, ALL);
	opt.wr = 2;
	for (int i = 0; i < 200; i++) {
		qps[i] = make_qp(&L);
		for (int k = 0; k < i; k++)
			MUST(qps[k]->qp_num != qps[i]->qp_num, "two queue pairs have number 0x%x", qps[i]->qp_num);
	}
	for (int i = 0; i < 200; i++)
		ZERO(ibv_destroy_qp(qps[i]));
	side_close(&L);
}

const struct check checks_objects[] = {
	{"device", device}, {"port", port}, {"gids", gids}, {"pd-busy", pd_busy}, {"pd-busy-qp", pd_busy_qp}, {"cq-busy", cq_busy},
	{"channel-busy", channel_busy}, {"mr-unmapped", mr_unmapped}, {"mr-read-only", mr_read_only}, {"mr-access", mr_access},
	{"mr-odp", mr_odp}, {"mr-relaxed", mr_relaxed}, {"mr-keys", mr_keys}, {"mr-rereg", mr_rereg}, {"mr-dmabuf", mr_dmabuf},
	{"cq-limits", cq_limits}, {"qp-limits", qp_limits}, {"qp-raw", qp_raw}, {"qp-query", qp_query}, {"qp-states", qp_states},
	{"qp-many", qp_many}, {NULL, NULL}};
