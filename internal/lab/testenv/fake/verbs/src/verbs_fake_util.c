/* The rest of libibverbs: names, rates, the marshalling for librdmacm, and what does not exist here. */
#include "verbs_fake.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/sa.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NAME(list, i) ((unsigned)(i) < sizeof(list) / sizeof(*list) && list[i] ? list[i] : "unknown")

EXPORT const char *ibv_node_type_str(enum ibv_node_type t)
{
	static const char *const names[] = {"unknown", "InfiniBand channel adapter", "InfiniBand switch", "InfiniBand router", "iWARP NIC",
					    "usNIC", "usNIC UDP", "unspecified"};
	return NAME(names, t);
}

EXPORT const char *ibv_port_state_str(enum ibv_port_state s)
{
	static const char *const names[] = {"no state change (NOP)", "down", "init", "armed", "active", "active defer"};
	return NAME(names, s);
}

EXPORT const char *ibv_event_type_str(enum ibv_event_type e)
{
	static const char *const names[] = {
		"CQ error", "local work queue catastrophic error", "invalid request local work queue error",
		"local access violation work queue error", "communication established", "send queue drained", "path migrated",
		"path migration request error", "local catastrophic error", "port active", "port error", "LID change", "P_Key change",
		"SM change", "SRQ catastrophic error", "SRQ limit reached", "last WQE reached", "client reregistration", "GID table change",
		"WQ fatal"};
	return NAME(names, e);
}

EXPORT const char *ibv_wc_status_str(enum ibv_wc_status s)
{
	static const char *const names[] = {
		"success", "local length error", "local QP operation error", "local EE context operation error", "local protection error",
		"Work Request Flushed Error", "memory management operation error", "bad response error", "local access error",
		"remote invalid request error", "remote access error", "remote operation error", "transport retry counter exceeded",
		"RNR retry counter exceeded", "local RDD violation error", "remote invalid RD request", "aborted error",
		"invalid EE context number", "invalid EE context state", "fatal error", "response timeout error", "general error",
		"TM error", "TM software rendezvous"};
	return NAME(names, s);
}

/* Multiples of 2.5 Gbit/s and Mbit/s of each enum ibv_rate. */
static const struct { int mult, mbps; } rates[] = {
	[IBV_RATE_2_5_GBPS] = {1, 2500}, [IBV_RATE_5_GBPS] = {2, 5000}, [IBV_RATE_10_GBPS] = {4, 10000}, [IBV_RATE_20_GBPS] = {8, 20000},
	[IBV_RATE_30_GBPS] = {12, 30000}, [IBV_RATE_40_GBPS] = {16, 40000}, [IBV_RATE_60_GBPS] = {24, 60000},
	[IBV_RATE_80_GBPS] = {32, 80000}, [IBV_RATE_120_GBPS] = {48, 120000}, [IBV_RATE_14_GBPS] = {6, 14062},
	[IBV_RATE_56_GBPS] = {22, 56250}, [IBV_RATE_112_GBPS] = {45, 112500}, [IBV_RATE_168_GBPS] = {67, 168750},
	[IBV_RATE_25_GBPS] = {10, 25781}, [IBV_RATE_100_GBPS] = {41, 103125}, [IBV_RATE_200_GBPS] = {82, 206250},
	[IBV_RATE_300_GBPS] = {124, 309375}, [IBV_RATE_28_GBPS] = {11, 28125}, [IBV_RATE_50_GBPS] = {20, 53125},
	[IBV_RATE_400_GBPS] = {160, 425000}, [IBV_RATE_600_GBPS] = {240, 637500}, [IBV_RATE_800_GBPS] = {320, 850000},
	[IBV_RATE_1200_GBPS] = {480, 1275000}};

enum { RATES = sizeof(rates) / sizeof(*rates) };

EXPORT int ibv_rate_to_mult(enum ibv_rate r) { return (unsigned)r < RATES && rates[r].mult ? rates[r].mult : -1; }
EXPORT int ibv_rate_to_mbps(enum ibv_rate r) { return (unsigned)r < RATES && rates[r].mbps ? rates[r].mbps : -1; }

EXPORT enum ibv_rate mult_to_ibv_rate(int mult)
{
	for (unsigned i = 0; i < RATES; i++)
		if (mult && rates[i].mult == mult)
			return (enum ibv_rate)i;
	return IBV_RATE_MAX;
}

EXPORT enum ibv_rate mbps_to_ibv_rate(int mbps)
{
	for (unsigned i = 0; i < RATES; i++)
		if (mbps && rates[i].mbps == mbps)
			return (enum ibv_rate)i;
	return IBV_RATE_MAX;
}

/* ---- sysfs, which knows nothing of these devices */

EXPORT const char *ibv_get_sysfs_path(void);
EXPORT const char *ibv_get_sysfs_path(void) { return "/sys"; }

EXPORT int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);
EXPORT int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size)
{
	char path[512];
	if (snprintf(path, sizeof(path), "%s/%s", dir, file) >= (int)sizeof(path) || size == 0)
		return -1;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t n = read(fd, buf, size);
	close(fd);
	if (n <= 0)
		return -1;
	if (buf[n - 1] == '\n')
		buf[--n] = 0;
	else if ((size_t)n < size)
		buf[n] = 0;
	else
		return -1;
	return (int)n;
}

EXPORT int ibv_read_ibdev_sysfs_file(char *buf, size_t size, struct ibv_device *dev, const char *fmt, ...);
EXPORT int ibv_read_ibdev_sysfs_file(char *buf, size_t size, struct ibv_device *dev, const char *fmt, ...)
{
	(void)buf, (void)size, (void)dev, (void)fmt;
	errno = ENOENT;
	return -1;
}

/* ---- fork: memory is copied by address, nothing is pinned, so nothing needs to be kept from a child */

EXPORT int ibv_fork_init(void) { return 0; }
EXPORT enum ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }
EXPORT int ibv_dontfork_range(void *base, size_t size);
EXPORT int ibv_dontfork_range(void *base, size_t size) { return (void)base, (void)size, 0; }
EXPORT int ibv_dofork_range(void *base, size_t size);
EXPORT int ibv_dofork_range(void *base, size_t size) { return (void)base, (void)size, 0; }

/* ---- addresses out of a received datagram */

EXPORT int ibv_init_ah_from_wc(struct ibv_context *c, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh, struct ibv_ah_attr *a)
{
	static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
	union ibv_gid sgid, dgid, g;
	const uint8_t *ip = (const uint8_t *)grh + 20;
	memset(a, 0, sizeof(*a));
	a->dlid = wc->slid;
	a->sl = wc->sl;
	a->src_path_bits = wc->dlid_path_bits;
	a->port_num = port;
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	bool v4 = ip[0] == 0x45 && ntohl(grh->version_tclass_flow) >> 28 != 6;
	if (v4) {
		memcpy(sgid.raw, mapped, 12);
		memcpy(dgid.raw, mapped, 12);
		memcpy(sgid.raw + 12, ip + 12, 4);
		memcpy(dgid.raw + 12, ip + 16, 4);
	} else {
		sgid = grh->sgid;
		dgid = grh->dgid;
	}
	a->is_global = 1;
	a->grh.dgid = sgid;
	a->grh.hop_limit = v4 ? ip[8] : grh->hop_limit;
	a->grh.traffic_class = v4 ? ip[1] : (uint8_t)(ntohl(grh->version_tclass_flow) >> 20);
	a->grh.flow_label = v4 ? 0 : ntohl(grh->version_tclass_flow) & 0xfffff;
	/* RoCE v2 before v1, as the packet came with IP; on InfiniBand there is one type. */
	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < MAX_GIDS && ibv_query_gid(c, port, i, &g) == 0; i++)
			if (memcmp(&g, &dgid, sizeof(g)) == 0 &&
			    (pass || ((struct fake_context *)verbs_get_ctx(c))->dev->port.gid_type[i] == IBV_GID_TYPE_ROCE_V2)) {
				a->grh.sgid_index = (uint8_t)i;
				return 0;
			}
	errno = EINVAL;
	return -1;
}

EXPORT struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr a;
	return ibv_init_ah_from_wc(pd->context, port, wc, grh, &a) ? NULL : ibv_create_ah(pd, &a);
}

EXPORT int ibv_resolve_eth_l2_from_gid(struct ibv_context *c, struct ibv_ah_attr *a, uint8_t mac[ETHERNET_LL_SIZE], uint16_t *vid)
{
	(void)c;
	const uint8_t *g = a->grh.dgid.raw;
	uint8_t m[ETHERNET_LL_SIZE] = {0x02, 0, 0, 0, 0, g[15]};
	memcpy(mac, m, sizeof(m));
	*vid = 0xffff;
	return 0;
}

/* ---- structures between the kernel's layout and the user's, for librdmacm */

EXPORT void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *d, struct ib_uverbs_ah_attr *s);
EXPORT void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *d, struct ib_uverbs_ah_attr *s)
{
	memcpy(d->grh.dgid.raw, s->grh.dgid, sizeof(d->grh.dgid));
	d->grh.flow_label = s->grh.flow_label;
	d->grh.sgid_index = s->grh.sgid_index;
	d->grh.hop_limit = s->grh.hop_limit;
	d->grh.traffic_class = s->grh.traffic_class;
	d->dlid = s->dlid;
	d->sl = s->sl;
	d->src_path_bits = s->src_path_bits;
	d->static_rate = s->static_rate;
	d->is_global = s->is_global;
	d->port_num = s->port_num;
}

EXPORT void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *d, struct ib_uverbs_qp_attr *s);
EXPORT void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *d, struct ib_uverbs_qp_attr *s)
{
	d->qp_state = s->qp_state;
	d->cur_qp_state = s->cur_qp_state;
	d->path_mtu = s->path_mtu;
	d->path_mig_state = s->path_mig_state;
	d->qkey = s->qkey;
	d->rq_psn = s->rq_psn;
	d->sq_psn = s->sq_psn;
	d->dest_qp_num = s->dest_qp_num;
	d->qp_access_flags = s->qp_access_flags;
	d->cap = (struct ibv_qp_cap){s->max_send_wr, s->max_recv_wr, s->max_send_sge, s->max_recv_sge, s->max_inline_data};
	ibv_copy_ah_attr_from_kern(&d->ah_attr, &s->ah_attr);
	ibv_copy_ah_attr_from_kern(&d->alt_ah_attr, &s->alt_ah_attr);
	d->pkey_index = s->pkey_index;
	d->alt_pkey_index = s->alt_pkey_index;
	d->en_sqd_async_notify = s->en_sqd_async_notify;
	d->sq_draining = s->sq_draining;
	d->max_rd_atomic = s->max_rd_atomic;
	d->max_dest_rd_atomic = s->max_dest_rd_atomic;
	d->min_rnr_timer = s->min_rnr_timer;
	d->port_num = s->port_num;
	d->timeout = s->timeout;
	d->retry_cnt = s->retry_cnt;
	d->rnr_retry = s->rnr_retry;
	d->alt_port_num = s->alt_port_num;
	d->alt_timeout = s->alt_timeout;
}

#define PATH_REC(d, s) \
	memcpy(&(d)->dgid, &(s)->dgid, 16); \
	memcpy(&(d)->sgid, &(s)->sgid, 16); \
	(d)->dlid = (s)->dlid; \
	(d)->slid = (s)->slid; \
	(d)->raw_traffic = (s)->raw_traffic; \
	(d)->flow_label = (s)->flow_label; \
	(d)->hop_limit = (s)->hop_limit; \
	(d)->traffic_class = (s)->traffic_class; \
	(d)->reversible = (s)->reversible; \
	(d)->numb_path = (s)->numb_path; \
	(d)->pkey = (s)->pkey; \
	(d)->sl = (s)->sl; \
	(d)->mtu_selector = (s)->mtu_selector; \
	(d)->mtu = (s)->mtu; \
	(d)->rate_selector = (s)->rate_selector; \
	(d)->rate = (s)->rate; \
	(d)->packet_life_time_selector = (s)->packet_life_time_selector; \
	(d)->packet_life_time = (s)->packet_life_time; \
	(d)->preference = (s)->preference

EXPORT void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *d, struct ib_user_path_rec *s);
EXPORT void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *d, struct ib_user_path_rec *s)
{
	memset(d, 0, sizeof(*d));
	PATH_REC(d, s);
}

EXPORT void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *d, struct ibv_sa_path_rec *s);
EXPORT void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *d, struct ibv_sa_path_rec *s)
{
	memset(d, 0, sizeof(*d));
	PATH_REC(d, s);
}

/* ---- what is absent */

static void *absent(void)
{
	errno = EOPNOTSUPP;
	return NULL;
}

EXPORT struct ibv_context *ibv_import_device(int fd) { return (void)fd, absent(); }
EXPORT struct ibv_pd *ibv_import_pd(struct ibv_context *c, uint32_t h) { return (void)c, (void)h, absent(); }
EXPORT void ibv_unimport_pd(struct ibv_pd *pd) { (void)pd; }
EXPORT struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t h) { return (void)pd, (void)h, absent(); }
EXPORT void ibv_unimport_mr(struct ibv_mr *mr) { (void)mr; }
EXPORT struct ibv_dm *ibv_import_dm(struct ibv_context *c, uint32_t h) { return (void)c, (void)h, absent(); }
EXPORT void ibv_unimport_dm(struct ibv_dm *dm) { (void)dm; }
EXPORT int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *e) { return (void)qp, (void)e, EOPNOTSUPP; }
EXPORT int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *e) { return (void)qp, (void)e, EOPNOTSUPP; }
EXPORT int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t f) { return (void)qp, (void)op, (void)f, 0; }

EXPORT int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)qp, (void)gid, (void)lid;
	lock();
	int err = fake_call(CALL_ibv_attach_mcast);
	unlock();
	return err ? err : EOPNOTSUPP;
}

EXPORT int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return (void)qp, (void)gid, (void)lid, EINVAL;
}

EXPORT void ibv_register_driver(const char *name, void *init);
EXPORT void ibv_register_driver(const char *name, void *init)
{
	(void)init;
	lock();
	fake_violation("ibv_register_driver: %s is not taken in", name);
	unlock();
}
