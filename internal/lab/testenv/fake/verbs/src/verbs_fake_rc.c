/* What one send request does: the checks of requester and responder in their order, the copy, the receive completion. */
#include "verbs_fake.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

/* fake_rnr_ns is the time that a value of min_rnr_timer stands for: InfiniBand specification, table 45. */
uint64_t fake_rnr_ns(uint8_t timer)
{
	static const uint32_t us10[32] = {65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
					  2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
	return us10[timer & 31] * 10000ull;
}

/* A place in a scatter or gather list, or in plain memory. */
struct cursor {
	struct fake_pd *pd;
	const struct ibv_sge *s;
	int n;
	bool write;
	char *raw;
	uint32_t off, raw_len;
};

static uint64_t room(const struct ibv_sge *s, int n)
{
	uint64_t sum = 0;
	for (int i = 0; i < n; i++)
		sum += s[i].length;
	return sum;
}

/* span is the memory at the cursor, without moving it. */
static enum ibv_wc_status span(struct cursor *c, char **p, uint32_t *len)
{
	if (c->raw) {
		*p = c->raw + c->off;
		*len = c->raw_len - c->off;
		return IBV_WC_SUCCESS;
	}
	while (c->n > 0 && c->off == c->s->length) {
		c->s++;
		c->n--;
		c->off = 0;
	}
	if (c->n == 0)
		return IBV_WC_LOC_LEN_ERR;
	struct ibv_sge part = {c->s->addr, c->s->length, c->s->lkey};
	enum ibv_wc_status st = fake_local(c->pd, &part, c->write, p);
	if (st == IBV_WC_SUCCESS) {
		*p += c->off;
		*len = c->s->length - c->off;
	}
	return st;
}

/* check looks at len bytes of a list without touching them. */
static enum ibv_wc_status check(struct cursor c, uint64_t len)
{
	char *p;
	uint32_t n;
	while (len > 0) {
		enum ibv_wc_status st = span(&c, &p, &n);
		if (st != IBV_WC_SUCCESS)
			return st;
		if (n > len)
			n = (uint32_t)len;
		c.off += n;
		len -= n;
	}
	return IBV_WC_SUCCESS;
}

/* copy moves len bytes between lists that were checked. */
static void copy(struct cursor *to, struct cursor *from, uint64_t len)
{
	char *p, *q;
	uint32_t n, m;
	while (len > 0 && span(to, &p, &n) == IBV_WC_SUCCESS && span(from, &q, &m) == IBV_WC_SUCCESS) {
		if (n > m)
			n = m;
		if (n > len)
			n = (uint32_t)len;
		memmove(p, q, n);
		to->off += n;
		from->off += n;
		len -= n;
	}
}

static struct cursor gather(struct fake_qp *qp, struct wqe *w, bool write)
{
	struct cursor c = {.pd = (struct fake_pd *)qp->ibv.pd, .s = w->wr.sg_list, .n = w->wr.num_sge, .write = write};
	if (w->wr.send_flags & IBV_SEND_INLINE)
		c = (struct cursor){.raw = w->inlined, .raw_len = w->inlined_len};
	return c;
}

/* ---- receives */

struct receive {
	struct rq *rq;
	struct fake_srq *srq;
	struct fake_cq *cq;
	struct fake_pd *pd;
	struct rqe *e;       /* NULL: none is posted */
};

static struct receive next_receive(struct fake_qp *resp, struct fake_srq *xrc)
{
	struct fake_srq *srq = xrc ? xrc : resp->srq;
	struct receive r = {.rq = srq ? &srq->rq : &resp->rq, .srq = srq, .cq = xrc ? xrc->cq : resp->rcq};
	r.pd = (struct fake_pd *)(xrc ? xrc->ibv.pd : resp->ibv.pd);
	if (r.rq->done != r.rq->post)
		r.e = &r.rq->ring[r.rq->done % r.rq->size];
	return r;
}

/* taken completes the receive at the head of its queue and returns its status, which a script may have changed. */
static enum ibv_wc_status taken(struct fake_qp *resp, struct receive *r, struct ibv_wc wc, bool solicited)
{
	struct fate f = fake_fate(SIDE_RECV);
	struct cqe e = {.wc = wc, .qp = r->srq ? NULL : resp, .rq = !r->srq, .srq = r->srq};
	if (f.status != IBV_WC_SUCCESS)
		e.wc.status = f.status;
	e.wc.wr_id = r->e->wr_id;
	e.wc.qp_num = resp->ibv.qp_num;
	r->rq->done++;
	if (f.drop)
		fake_count(CALL_drops, 1);
	else
		fake_push(r->cq, &e, solicited || e.wc.status != IBV_WC_SUCCESS);
	if (r->srq)
		fake_srq_taken(r->srq);
	return e.wc.status;
}

/* ---- connected transports */

static struct fake_qp *peer_of(struct fake_qp *qp)
{
	struct fake_device *dev = fake_route(qp->dev, &qp->attr.ah_attr);
	struct fake_qp *p = dev ? fake_qp_find(dev, qp->attr.dest_qp_num) : NULL;
	enum ibv_qp_type want = qp->type == IBV_QPT_XRC_SEND ? IBV_QPT_XRC_RECV : qp->type;
	if (!p || p->type != want || (p->state != IBV_QPS_RTR && p->state != IBV_QPS_RTS && p->state != IBV_QPS_SQD &&
				      (p->state != IBV_QPS_SQE || p->type != IBV_QPT_UC)))
		return NULL;
	if (p->attr.dest_qp_num != qp->ibv.qp_num || fake_route(p->dev, &p->attr.ah_attr) != qp->dev)
		return NULL;
	return p;
}

static uint32_t mtu_bytes(enum ibv_mtu m) { return 128u << m; }

static uint32_t packets(struct fake_qp *qp, uint64_t len)
{
	uint32_t mtu = mtu_bytes(qp->attr.path_mtu);
	return len == 0 ? 1 : (uint32_t)((len + mtu - 1) / mtu);
}

/* survivors is how many of the n packets of an unreliable message come before the first that the network loses; n: all. */
static uint32_t survivors(uint32_t n)
{
	for (uint32_t i = 0; config.loss && i < n; i++) {
		config.lottery ^= config.lottery << 13;
		config.lottery ^= config.lottery >> 7;
		config.lottery ^= config.lottery << 17;
		if (config.lottery % 100 < config.loss)
			return i;
	}
	return n;
}

/* refuse is what the responder does with a bad request: it stops, and says so to its user. */
static int refuse(struct fake_qp *qp, struct fake_qp *resp, enum ibv_wc_status st)
{
	if (qp->type == IBV_QPT_UC)
		return IBV_WC_SUCCESS; /* dropped, nobody answers */
	fake_async(resp->o.ctx, resp, st == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
	fake_qp_error(resp, IBV_QPS_ERR);
	return st;
}

/* receive delivers a message or an immediate value into the next receive. */
static int receive(struct fake_qp *qp, struct fake_qp *resp, struct fake_srq *xrc, struct wqe *w, struct cursor *from, uint32_t len,
		   struct receive *r)
{
	bool solicited = (w->wr.send_flags & IBV_SEND_SOLICITED) != 0;
	struct ibv_wc wc = {.opcode = IBV_WC_RECV, .byte_len = len, .src_qp = qp->ibv.qp_num};
	(void)xrc;
	if (w->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
	else {
		struct cursor to = {.pd = r->pd, .s = r->e->sge, .n = r->e->nsge, .write = true};
		if (room(r->e->sge, r->e->nsge) < len)
			wc.status = IBV_WC_LOC_LEN_ERR;
		else if (check(to, len) != IBV_WC_SUCCESS)
			wc.status = IBV_WC_LOC_PROT_ERR;
		else
			copy(&to, from, len);
	}
	if (w->wr.opcode == IBV_WR_SEND_WITH_IMM || w->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
		wc.wc_flags |= IBV_WC_WITH_IMM;
		wc.imm_data = w->wr.imm_data;
	}
	if (wc.status == IBV_WC_SUCCESS && w->wr.opcode == IBV_WR_SEND_WITH_INV) {
		wc.wc_flags |= IBV_WC_WITH_INV;
		wc.invalidated_rkey = w->wr.invalidate_rkey;
		if (fake_invalidate(resp, w->wr.invalidate_rkey) != IBV_WC_SUCCESS)
			wc.status = IBV_WC_REM_INV_REQ_ERR;
	}
	switch (taken(resp, r, wc, solicited)) {
	case IBV_WC_SUCCESS:
		return IBV_WC_SUCCESS;
	case IBV_WC_LOC_LEN_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
		fake_qp_error(resp, IBV_QPS_ERR);
		return qp->type == IBV_QPT_UC ? IBV_WC_SUCCESS : IBV_WC_REM_INV_REQ_ERR;
	default:
		fake_qp_error(resp, IBV_QPS_ERR);
		return qp->type == IBV_QPT_UC ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR;
	}
}

static int connected(struct fake_qp *qp, struct wqe *w, uint32_t len, struct cursor *local, uint8_t *rnr_timer)
{
	struct fake_qp *resp = peer_of(qp);
	struct fake_srq *xrc = NULL;
	enum ibv_wr_opcode op = w->wr.opcode;
	bool uc = qp->type == IBV_QPT_UC;
	if (!resp) {
		if (uc)
			fake_count(CALL_drops, 1);
		return uc ? IBV_WC_SUCCESS : ST_TIMEOUT;
	}
	if (uc)
		resp->rq_psn = qp->sq_psn; /* an unreliable responder takes a first packet with any number */
	if (resp->rq_psn != qp->sq_psn)
		return ST_SEQ;
	*rnr_timer = resp->attr.min_rnr_timer;
	if (resp->state == IBV_QPS_RTR && !resp->est) {
		resp->est = true;
		fake_async(resp->o.ctx, resp, IBV_EVENT_COMM_EST);
	}
	if (qp->type == IBV_QPT_XRC_SEND) {
		xrc = fake_srq_find(resp->dev, w->wr.qp_type.xrc.remote_srqn);
		if (!xrc || xrc->type != IBV_SRQT_XRC || xrc->xrcd != resp->xrcd)
			return refuse(qp, resp, IBV_WC_REM_INV_REQ_ERR);
	}
	/* Packets longer than the responder's path MTU, or a first packet that does not fill it. */
	if (qp->attr.path_mtu != resp->attr.path_mtu && op != IBV_WR_RDMA_READ &&
	    (packets(qp, len) > 1 || len > mtu_bytes(resp->attr.path_mtu)))
		return refuse(qp, resp, IBV_WC_REM_INV_REQ_ERR);

	struct ibv_pd *pd = xrc ? xrc->ibv.pd : resp->ibv.pd;
	bool write = op == IBV_WR_RDMA_WRITE || op == IBV_WR_RDMA_WRITE_WITH_IMM, read = op == IBV_WR_RDMA_READ;
	bool atomic = op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD;
	unsigned need = write ? IBV_ACCESS_REMOTE_WRITE : read ? IBV_ACCESS_REMOTE_READ : atomic ? IBV_ACCESS_REMOTE_ATOMIC : 0;
	struct receive r = {0};
	char *remote = NULL;
	if (need) {
		uint64_t addr = atomic ? w->wr.wr.atomic.remote_addr : w->wr.wr.rdma.remote_addr;
		uint32_t rkey = atomic ? w->wr.wr.atomic.rkey : w->wr.wr.rdma.rkey;
		if (!(resp->attr.qp_access_flags & need) || ((read || atomic) && resp->attr.max_dest_rd_atomic == 0))
			return refuse(qp, resp, IBV_WC_REM_INV_REQ_ERR);
		if (atomic && addr % 8)
			return refuse(qp, resp, IBV_WC_REM_INV_REQ_ERR);
		if (fake_remote(resp, pd, rkey, addr, len, need, &remote) != IBV_WC_SUCCESS)
			return refuse(qp, resp, IBV_WC_REM_ACCESS_ERR);
	}
	if (!need || op == IBV_WR_RDMA_WRITE_WITH_IMM) {
		r = next_receive(resp, xrc);
		if (!r.e) {
			if (uc)
				fake_count(CALL_drops, 1);
			return uc ? IBV_WC_SUCCESS : ST_RNR;
		}
	}
	int st = IBV_WC_SUCCESS;
	struct cursor far = {.raw = remote, .raw_len = len};
	uint32_t came = uc ? survivors(packets(qp, len)) : 0;
	if (uc && came < packets(qp, len)) { /* nobody hears of it, but what came before is in its place */
		if (write && len)
			copy(&far, local, (uint64_t)came * mtu_bytes(qp->attr.path_mtu));
		qp->sq_psn = (qp->sq_psn + packets(qp, len)) & 0xffffff;
		fake_count(CALL_drops, 1);
		return IBV_WC_SUCCESS;
	}
	if (write && len)
		copy(&far, local, len);
	if (read && len)
		copy(local, &far, len);
	if (atomic) {
		uint64_t old, *p = (uint64_t *)(void *)remote;
		if (op == IBV_WR_ATOMIC_FETCH_AND_ADD)
			old = __atomic_fetch_add(p, w->wr.wr.atomic.compare_add, __ATOMIC_SEQ_CST);
		else {
			old = w->wr.wr.atomic.compare_add;
			__atomic_compare_exchange_n(p, &old, w->wr.wr.atomic.swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
		}
		struct cursor c = {.raw = (char *)&old, .raw_len = 8};
		copy(local, &c, 8);
	}
	if (r.e)
		st = receive(qp, resp, xrc, w, local, len, &r);
	uint32_t n = read ? packets(resp, len) : packets(qp, len);
	qp->sq_psn = (qp->sq_psn + n) & 0xffffff;
	resp->rq_psn = (resp->rq_psn + n) & 0xffffff;
	return st;
}

/* ---- datagrams */

/* route_header is what the receiver finds in the first 40 bytes: a global route header, or for IPv4 its last 20 bytes as the IPv4
 * header, the first 20 undefined. */
static void route_header(char *h, struct fake_qp *qp, struct wqe *w, uint32_t len)
{
	const union ibv_gid *from = &qp->dev->port.gid[w->av.grh.sgid_index], *to = &w->av.grh.dgid;
	static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
	bool v2 = !config.infiniband && qp->dev->port.gid_type[w->av.grh.sgid_index] == IBV_GID_TYPE_ROCE_V2;
	if (!config.infiniband && v2 && memcmp(to->raw, mapped, 12) == 0) {
		uint8_t *ip = (uint8_t *)h + 20;
		uint16_t total = htons((uint16_t)(20 + 8 + 12 + 8 + len + 4));
		memset(h, 0x5a, 20);
		memset(ip, 0, 20);
		ip[0] = 0x45;
		ip[1] = w->av.grh.traffic_class;
		memcpy(ip + 2, &total, 2);
		ip[6] = 0x40;
		ip[8] = w->av.grh.hop_limit;
		ip[9] = 17;
		memcpy(ip + 12, from->raw + 12, 4);
		memcpy(ip + 16, to->raw + 12, 4);
		uint32_t sum = 0;
		for (int i = 0; i < 20; i += 2)
			sum += (uint32_t)ip[i] << 8 | ip[i + 1];
		sum = (sum & 0xffff) + (sum >> 16);
		sum = ~((sum & 0xffff) + (sum >> 16));
		ip[10] = (uint8_t)(sum >> 8);
		ip[11] = (uint8_t)sum;
		return;
	}
	struct ibv_grh g = {.next_hdr = v2 ? 17 : 0x1b, .hop_limit = w->av.grh.hop_limit, .sgid = *from, .dgid = *to};
	g.version_tclass_flow = htonl(6u << 28 | (uint32_t)w->av.grh.traffic_class << 20 | (w->av.grh.flow_label & 0xfffff));
	g.paylen = htons((uint16_t)(len + 24));
	memcpy(h, &g, sizeof(g));
}

static void datagram(struct fake_qp *qp, struct wqe *w, uint32_t len, struct cursor *local)
{
	struct fake_device *dev = fake_route(qp->dev, &w->av);
	struct fake_qp *resp = dev ? fake_qp_find(dev, w->wr.wr.ud.remote_qpn) : NULL;
	uint32_t qkey = w->wr.wr.ud.remote_qkey & 0x80000000u ? qp->attr.qkey : w->wr.wr.ud.remote_qkey;
	uint32_t mtu = mtu_bytes(config.infiniband ? IBV_MTU_4096 : IBV_MTU_1024);
	char h[GRH_LEN] = {0};
	qp->sq_psn = (qp->sq_psn + 1) & 0xffffff;
	/* Whatever is wrong with a datagram, its sender is not told: InfiniBand specification, C10-93.1.1 for the length. */
	if (len > mtu || !resp || resp->type != IBV_QPT_UD || (resp->state != IBV_QPS_RTR && resp->state != IBV_QPS_RTS &&
	    resp->state != IBV_QPS_SQD && resp->state != IBV_QPS_SQE) || resp->attr.qkey != qkey || survivors(1) == 0) {
		fake_count(CALL_drops, 1);
		return;
	}
	struct receive r = next_receive(resp, NULL);
	if (!r.e) {
		fake_count(CALL_drops, 1);
		return;
	}
	struct cursor to = {.pd = r.pd, .s = r.e->sge, .n = r.e->nsge, .write = true}, head = {.raw = h, .raw_len = GRH_LEN};
	struct ibv_wc wc = {.opcode = IBV_WC_RECV, .byte_len = len + GRH_LEN, .src_qp = qp->ibv.qp_num, .sl = w->av.sl};
	wc.slid = config.infiniband ? (uint16_t)(qp->dev->index + 1) : 0;
	if (w->av.is_global) {
		wc.wc_flags |= IBV_WC_GRH;
		route_header(h, qp, w, len);
	}
	if (w->wr.opcode == IBV_WR_SEND_WITH_IMM) {
		wc.wc_flags |= IBV_WC_WITH_IMM;
		wc.imm_data = w->wr.imm_data;
	}
	if (room(r.e->sge, r.e->nsge) < (uint64_t)len + GRH_LEN)
		wc.status = IBV_WC_LOC_LEN_ERR;
	else if (check(to, (uint64_t)len + GRH_LEN) != IBV_WC_SUCCESS)
		wc.status = IBV_WC_LOC_PROT_ERR;
	else {
		copy(&to, &head, GRH_LEN);
		copy(&to, local, len);
	}
	if (taken(resp, &r, wc, (w->wr.send_flags & IBV_SEND_SOLICITED) != 0) != IBV_WC_SUCCESS)
		fake_qp_error(resp, IBV_QPS_ERR);
}

/* ---- frames */

/* frame_to puts a frame into the next receive of a queue pair. Without one it is lost, and counted by the device alone. */
static void frame_to(struct fake_qp *resp, char *bytes, uint32_t len)
{
	struct cursor from = {.raw = bytes, .raw_len = len};
	struct receive r = next_receive(resp, NULL);
	if (!r.e) {
		fake_count(resp->dev->index ? CALL_raw_dry_1 : CALL_raw_dry_0, 1);
		return;
	}
	struct cursor to = {.pd = r.pd, .s = r.e->sge, .n = r.e->nsge, .write = true};
	struct ibv_wc wc = {.opcode = IBV_WC_RECV, .byte_len = len};
	if (fake_raw_sums((uint8_t *)bytes, len, false))
		wc.wc_flags |= IBV_WC_IP_CSUM_OK;
	if (room(r.e->sge, r.e->nsge) < len)
		wc.status = IBV_WC_LOC_LEN_ERR;
	else if (check(to, len) != IBV_WC_SUCCESS)
		wc.status = IBV_WC_LOC_PROT_ERR;
	else
		copy(&to, &from, len);
	if (taken(resp, &r, wc, false) != IBV_WC_SUCCESS)
		fake_qp_error(resp, IBV_QPS_ERR);
}

/* frame sends one to the other devices: all are on one segment. */
static int frame(struct fake_qp *qp, struct wqe *w, uint32_t len, struct cursor *local)
{
	struct fake_qp *to[8];
	if (len < 14)
		return IBV_WC_LOC_LEN_ERR;
	char *bytes = malloc(len);
	if (!bytes)
		return IBV_WC_LOC_QP_OP_ERR;
	struct cursor flat = {.raw = bytes, .raw_len = len};
	copy(&flat, local, len);
	if (w->wr.send_flags & IBV_SEND_IP_CSUM)
		fake_raw_sums((uint8_t *)bytes, len, true);
	for (int i = 0; i < config.devices; i++) {
		struct fake_device *d = &devices[i];
		if (d == qp->dev)
			continue;
		if (qp->dev->port.state != IBV_PORT_ACTIVE || qp->dev->port.cut || d->port.state != IBV_PORT_ACTIVE || d->port.cut) {
			fake_count(CALL_drops, 1);
			continue;
		}
		int n = fake_raw_receivers(d, (uint8_t *)bytes, len, to, 8);
		if (n == 0)
			fake_count(CALL_raw_kernel, 1);
		for (int k = 0; k < n; k++)
			frame_to(to[k], bytes, len);
	}
	free(bytes);
	return IBV_WC_SUCCESS;
}

/* fake_execute does what a request asks for. It returns a status, or ST_RNR, ST_TIMEOUT or ST_SEQ when the request must wait or be
 * tried again: then nothing has happened yet. */
int fake_execute(struct fake_qp *qp, struct wqe *w, uint32_t *len, uint8_t *rnr_timer)
{
	enum ibv_wr_opcode op = w->wr.opcode;
	bool sink = op == IBV_WR_RDMA_READ || op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD;
	if (op == IBV_WR_BIND_MW)
		return fake_bind(qp, (struct fake_mw *)w->wr.bind_mw.mw, w->wr.bind_mw.rkey, &w->wr.bind_mw.bind_info);
	if (op == IBV_WR_LOCAL_INV)
		return fake_invalidate(qp, w->wr.invalidate_rkey);
	struct cursor local = gather(qp, w, sink);
	uint64_t total = local.raw ? local.raw_len : room(w->wr.sg_list, w->wr.num_sge);
	if (total > MAX_MESSAGE || (sink && op != IBV_WR_RDMA_READ && total != 8))
		return IBV_WC_LOC_LEN_ERR;
	enum ibv_wc_status st = check(local, total);
	if (st != IBV_WC_SUCCESS)
		return st;
	*len = (uint32_t)total;
	if (qp->type == IBV_QPT_RAW_PACKET)
		return frame(qp, w, *len, &local);
	if (qp->type == IBV_QPT_UD) {
		datagram(qp, w, *len, &local);
		return IBV_WC_SUCCESS;
	}
	return connected(qp, w, *len, &local, rnr_timer);
}
