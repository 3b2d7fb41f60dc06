/* Devices, ports, GIDs, contexts and asynchronous events. */
#include "verbs_fake.h"

#include <arpa/inet.h>
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fake_device devices[MAX_DEVICES];

/* fake_devices_init gives every device its name and the GIDs that an adapter with one IPv4 address has: link-local and IPv4,
 * each as RoCE v1 and v2. */
void fake_devices_init(void)
{
	for (int i = 0; i < MAX_DEVICES; i++) {
		struct fake_device *d = &devices[i];
		d->index = i;
		d->ibv.node_type = IBV_NODE_CA;
		d->ibv.transport_type = IBV_TRANSPORT_IB;
		snprintf(d->ibv.name, sizeof(d->ibv.name), "fake%d", i);
		snprintf(d->ibv.dev_name, sizeof(d->ibv.dev_name), "uverbs-fake%d", i);
		snprintf(d->ibv.dev_path, sizeof(d->ibv.dev_path), "/nonexistent/infiniband_verbs/uverbs-fake%d", i);
		snprintf(d->ibv.ibdev_path, sizeof(d->ibv.ibdev_path), "/nonexistent/infiniband/fake%d", i);
		d->port.state = IBV_PORT_ACTIVE;
		uint8_t local[16] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0xff, 0xfe, 0, 0, (uint8_t)(i + 1)};
		uint8_t v4[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, (uint8_t)(i + 1)};
		for (int g = 0; g < 4; g++) {
			memcpy(d->port.gid[g].raw, g < 2 ? local : v4, 16);
			d->port.gid_type[g] = g % 2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
		}
	}
}

static bool gid_zero(const union ibv_gid *g) { return g->global.subnet_prefix == 0 && g->global.interface_id == 0; }

static uint8_t gid_type(const struct fake_port *p, int i) { return config.infiniband ? IBV_GID_TYPE_IB : p->gid_type[i]; }

/* fake_check_av is what the kernel checks of an address vector. */
int fake_check_av(struct fake_device *dev, const struct ibv_ah_attr *av)
{
	if (av->port_num < 1 || av->port_num > PORTS)
		return EINVAL;
	if (!av->is_global)
		return config.infiniband ? 0 : EINVAL; /* RoCE has no LIDs */
	if (av->grh.sgid_index >= MAX_GIDS || gid_zero(&dev->port.gid[av->grh.sgid_index]))
		return EINVAL;
	return 0;
}

/* fake_route finds the device that an address vector leads to, or NULL: no such GID, of another type, or a port or cable that is
 * down at either end. */
struct fake_device *fake_route(struct fake_device *from, const struct ibv_ah_attr *av)
{
	struct fake_device *to = NULL;
	if (from->port.state != IBV_PORT_ACTIVE || from->port.cut)
		return NULL;
	for (int i = 0; i < config.devices && !to; i++) {
		struct fake_device *d = &devices[i];
		if (!av->is_global) {
			if (av->dlid == i + 1)
				to = d;
			continue;
		}
		for (int g = 0; g < MAX_GIDS; g++)
			if (!gid_zero(&d->port.gid[g]) && memcmp(&d->port.gid[g], &av->grh.dgid, 16) == 0 &&
			    gid_type(&d->port, g) == gid_type(&from->port, av->grh.sgid_index)) {
				to = d;
				break;
			}
	}
	if (!to || to->port.state != IBV_PORT_ACTIVE || to->port.cut)
		return NULL;
	return to;
}

void fake_device_event(struct fake_device *dev, enum ibv_event_type type)
{
	for (struct obj *o = fake_first(K_CONTEXT); o; o = o->next)
		if (o->ctx->dev == dev)
			fake_async(o->ctx, NULL, type);
}

void fake_port_set(struct fake_device *dev, enum ibv_port_state state)
{
	if (dev->port.state == state)
		return;
	dev->port.state = state;
	fake_device_event(dev, state == IBV_PORT_ACTIVE ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

/* ---- list, open, close */

EXPORT struct ibv_device **ibv_get_device_list(int *num)
{
	struct ibv_device **list = NULL;
	lock();
	int err = fake_start() ? fake_call(CALL_ibv_get_device_list) : EINVAL;
	if (!err) {
		list = calloc((size_t)config.devices + 1, sizeof(*list));
		if (!list)
			err = ENOMEM;
		for (int i = 0; list && i < config.devices; i++)
			list[i] = &devices[i].ibv;
	}
	if (num)
		*num = err ? 0 : config.devices;
	unlock();
	if (err)
		errno = err;
	return list;
}

EXPORT void ibv_free_device_list(struct ibv_device **list) { free(list); }
EXPORT const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
EXPORT int ibv_get_device_index(struct ibv_device *d) { return ((struct fake_device *)d)->index; }

static uint64_t guid(struct fake_device *d) { return 0x020000fffe000000u + (uint64_t)d->index + 1; }

EXPORT __be64 ibv_get_device_guid(struct ibv_device *d) { return htobe64(guid((struct fake_device *)d)); }

static int query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *out, size_t len)
{
	struct fake_context *ctx = CTX(c);
	struct ibv_port_attr a = {
		.max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_1024, .gid_tbl_len = MAX_GIDS, .max_msg_sz = MAX_MESSAGE,
		.pkey_tbl_len = 1, .max_vl_num = 1, .active_width = 2, .active_speed = 32, .phys_state = 5,
		.link_layer = IBV_LINK_LAYER_ETHERNET, .port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
	};
	lock();
	int err = fake_call(CALL_ibv_query_port);
	if (!err && (!ALIVE(ctx, K_CONTEXT, "ibv_query_port") || port < 1 || port > PORTS))
		err = EINVAL;
	if (!err) {
		a.state = ctx->dev->port.state;
		if (a.state != IBV_PORT_ACTIVE)
			a.phys_state = 3;
		if (config.infiniband) {
			a.link_layer = IBV_LINK_LAYER_INFINIBAND;
			a.lid = (uint16_t)(ctx->dev->index + 1);
			a.sm_lid = 1;
			a.active_mtu = IBV_MTU_4096;
		}
		memset(out, 0, len);
		memcpy(out, &a, len < sizeof(a) ? len : sizeof(a));
	}
	unlock();
	return err;
}

EXPORT int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *out)
{
	/* The old structure ends before port_cap_flags2. */
	return query_port(c, port, (struct ibv_port_attr *)out, offsetof(struct ibv_port_attr, port_cap_flags2));
}

static void device_attr(struct fake_device *d, struct ibv_device_attr *a)
{
	*a = config.attr;
	a->node_guid = a->sys_image_guid = htobe64(guid(d));
	if (config.absent & ABSENT_ATOMICS)
		a->atomic_cap = IBV_ATOMIC_NONE;
	if (config.absent & ABSENT_MW) {
		a->max_mw = 0;
		a->device_cap_flags &= ~(unsigned)(IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS);
	}
	if (config.absent & ABSENT_SRQ)
		a->max_srq = a->max_srq_wr = a->max_srq_sge = 0;
	if (config.absent & ABSENT_XRC)
		a->device_cap_flags &= ~(unsigned)IBV_DEVICE_XRC;
	if (config.raw) {
		a->max_raw_ethy_qp = 256;
		a->device_cap_flags |= IBV_DEVICE_RAW_IP_CSUM;
	}
}

EXPORT int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	struct fake_context *ctx = CTX(c);
	lock();
	int err = fake_call(CALL_ibv_query_device);
	if (!err && !ALIVE(ctx, K_CONTEXT, "ibv_query_device"))
		err = EINVAL;
	if (!err)
		device_attr(ctx->dev, a);
	unlock();
	return err;
}

int fake_query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in, struct ibv_device_attr_ex *a, size_t n)
{
	struct ibv_device_attr_ex x = {.completion_timestamp_mask = UINT64_MAX, .hca_core_clock = 1000000, .phys_port_cnt_ex = PORTS};
	(void)in;
	int err = ibv_query_device(c, &x.orig_attr);
	if (err)
		return err;
	x.device_cap_flags_ex = x.orig_attr.device_cap_flags;
	x.raw_packet_caps = config.raw ? IBV_RAW_PACKET_CAP_IP_CSUM : 0;
	if (config.odp) { /* what cards with mlx5 have: no atomics, no UC */
		x.odp_caps.general_caps = IBV_ODP_SUPPORT;
		x.odp_caps.per_transport_caps.rc_odp_caps = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
		x.odp_caps.per_transport_caps.ud_odp_caps = IBV_ODP_SUPPORT_SEND;
	}
	memset(a, 0, n);
	memcpy(a, &x, n < sizeof(x) ? n : sizeof(x));
	return 0;
}

static int query_rt_values(struct ibv_context *c, struct ibv_values_ex *v)
{
	(void)c;
	if (v->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
		return EINVAL;
	uint64_t t = now_ns();
	v->raw_clock.tv_sec = (time_t)(t / 1000000000u);
	v->raw_clock.tv_nsec = (long)(t % 1000000000u);
	return 0;
}

static int query_gid(struct ibv_context *c, uint32_t port, int index, union ibv_gid *gid, uint8_t *type)
{
	struct fake_context *ctx = CTX(c);
	lock();
	int err = fake_call(CALL_ibv_query_gid);
	if (!err && (!ALIVE(ctx, K_CONTEXT, "ibv_query_gid") || port < 1 || port > PORTS || index < 0 || index >= MAX_GIDS))
		err = EINVAL;
	if (!err) {
		*gid = ctx->dev->port.gid[index];
		*type = gid_type(&ctx->dev->port, index);
	}
	unlock();
	return err;
}

EXPORT int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *gid)
{
	uint8_t type;
	int err = query_gid(c, port, index, gid, &type);
	if (err)
		errno = err;
	return err ? -1 : 0;
}

EXPORT int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index, struct ibv_gid_entry *e, uint32_t flags, size_t size)
{
	struct ibv_gid_entry x = {.gid_index = index, .port_num = port};
	uint8_t type;
	if (flags)
		return EOPNOTSUPP;
	int err = index < MAX_GIDS ? query_gid(c, port, (int)index, &x.gid, &type) : EINVAL;
	if (err)
		return err;
	if (gid_zero(&x.gid))
		return ENODATA;
	x.gid_type = type;
	memcpy(e, &x, size < sizeof(x) ? size : sizeof(x));
	return 0;
}

EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *out, size_t max, uint32_t flags, size_t size)
{
	ssize_t n = 0;
	if (flags)
		return -EOPNOTSUPP;
	for (uint32_t i = 0; i < MAX_GIDS; i++) {
		struct ibv_gid_entry e;
		int err = _ibv_query_gid_ex(c, 1, i, &e, 0, sizeof(e));
		if (err == ENODATA)
			continue;
		if (err)
			return -err;
		if ((size_t)n == max)
			return -EINVAL;
		memcpy((char *)out + (size_t)n * size, &e, size < sizeof(e) ? size : sizeof(e));
		n++;
	}
	return n;
}

/* ibv_query_gid_type is private to rdma-core and used by ibv_devinfo: 0 is IB or RoCE v1, 1 is RoCE v2. */
EXPORT int ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned index, int *type);
EXPORT int ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned index, int *type)
{
	union ibv_gid g;
	uint8_t t;
	int err = query_gid(c, port, (int)index, &g, &t);
	if (err) {
		errno = err;
		return -1;
	}
	*type = t == IBV_GID_TYPE_ROCE_V2;
	return 0;
}

EXPORT int ibv_query_pkey(struct ibv_context *c, uint8_t port, int index, __be16 *pkey)
{
	struct fake_context *ctx = CTX(c);
	lock();
	int err = fake_call(CALL_ibv_query_pkey);
	if (!err && (!ALIVE(ctx, K_CONTEXT, "ibv_query_pkey") || port < 1 || port > PORTS || index != 0))
		err = EINVAL;
	unlock();
	if (err) {
		errno = err;
		return -1;
	}
	*pkey = htobe16(0xffff);
	return 0;
}

EXPORT int ibv_get_pkey_index(struct ibv_context *c, uint8_t port, __be16 pkey)
{
	__be16 have;
	if (ibv_query_pkey(c, port, 0, &have) || have != pkey) {
		errno = EINVAL;
		return -1;
	}
	return 0;
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *ibv)
{
	struct fake_device *dev = (struct fake_device *)ibv;
	struct fake_context *ctx = NULL;
	lock();
	int err = fake_call(CALL_ibv_open_device);
	if (!err && (dev < devices || dev >= devices + MAX_DEVICES)) {
		fake_violation("ibv_open_device: %p is not a device of the list", (void *)dev);
		err = EINVAL;
	}
	if (!err)
		err = fake_wire_start();
	if (!err && !(ctx = NEW(struct fake_context, K_CONTEXT, NULL)))
		err = ENOMEM;
	if (ctx && (err = events_open(&ctx->async)) != 0) {
		fake_bury(&ctx->o);
		ctx = NULL;
	}
	if (ctx) {
		struct verbs_context *v = &ctx->v;
		struct ibv_context *c = &v->context;
		ctx->o.ctx = ctx;
		ctx->dev = dev;
		c->device = ibv;
		c->cmd_fd = -1;
		c->async_fd = ctx->async.fd;
		c->num_comp_vectors = COMP_VECTORS;
		c->abi_compat = __VERBS_ABI_IS_EXTENDED;
		pthread_mutex_init(&c->mutex, NULL);
		c->ops.poll_cq = fake_poll_cq;
		c->ops.req_notify_cq = fake_req_notify;
		c->ops.post_send = fake_post_send;
		c->ops.post_recv = fake_post_recv;
		c->ops.post_srq_recv = fake_post_srq_recv;
		c->ops.alloc_mw = fake_alloc_mw;
		c->ops.dealloc_mw = fake_dealloc_mw;
		c->ops.bind_mw = fake_bind_mw;
		v->sz = sizeof(*v);
		v->query_port = query_port;
		if (!(config.absent & ABSENT_EX)) {
			v->query_device_ex = fake_query_device_ex;
			v->create_cq_ex = fake_create_cq_ex;
			v->query_rt_values = query_rt_values;
		}
		if (!(config.absent & ABSENT_FLOWS)) {
			v->ibv_create_flow = fake_create_flow;
			v->ibv_destroy_flow = fake_destroy_flow;
		}
		v->create_qp_ex = fake_create_qp_ex;
		v->create_srq_ex = fake_create_srq_ex;
		v->get_srq_num = fake_get_srq_num;
		v->open_xrcd = fake_open_xrcd;
		v->close_xrcd = fake_close_xrcd;
	}
	if (err)
		fake_wire_stop();
	unlock();
	if (!ctx) {
		errno = err;
		return NULL;
	}
	return &ctx->v.context;
}

EXPORT int ibv_close_device(struct ibv_context *c)
{
	struct fake_context *ctx = CTX(c);
	lock();
	int err = fake_call(CALL_ibv_close_device);
	if (!err && !ALIVE(ctx, K_CONTEXT, "ibv_close_device"))
		err = EINVAL;
	int left = 0;
	for (int k = K_CONTEXT + 1; !err && k < KINDS; k++)
		for (struct obj *o = fake_first(k); o; o = o->next)
			left += o->ctx == ctx;
	if (left) {
		/* The kernel would end them with the descriptor. Here they would hang in the air: refuse, and say so. */
		fake_violation("ibv_close_device: %d objects of %s are not destroyed", left, ctx->dev->ibv.name);
		err = EBUSY;
	}
	if (!err) {
		events_close(&ctx->async);
		fake_bury(&ctx->o);
		fake_wire_stop();
	}
	unlock();
	return err;
}

/* ---- asynchronous events */

EXPORT int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *out)
{
	struct fake_context *ctx = CTX(c);
	struct event e;
	lock();
	int err = fake_call(CALL_ibv_get_async_event);
	if (!err && !ALIVE(ctx, K_CONTEXT, "ibv_get_async_event"))
		err = EINVAL;
	unlock();
	if (err || !events_get(&ctx->async, &e, &err)) {
		errno = err;
		return -1;
	}
	*out = e.async;
	switch (e.async.event_type) {
	case IBV_EVENT_CQ_ERR:
		((struct fake_cq *)e.element)->async_events++;
		break;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		((struct fake_srq *)e.element)->async_events++;
		break;
	default:
		if (e.element)
			((struct fake_qp *)e.element)->async_events++;
	}
	unlock();
	return 0;
}

static void ack(pthread_mutex_t *m, pthread_cond_t *c, uint32_t *n)
{
	pthread_mutex_lock(m);
	++*n;
	pthread_cond_broadcast(c);
	pthread_mutex_unlock(m);
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *ev)
{
	lock();
	fake_call(CALL_ibv_ack_async_event);
	unlock();
	switch (ev->event_type) {
	case IBV_EVENT_CQ_ERR: {
		struct ibv_cq *cq = ev->element.cq;
		ack(&cq->mutex, &cq->cond, &cq->async_events_completed);
		break;
	}
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED: {
		struct ibv_qp *qp = ev->element.qp;
		ack(&qp->mutex, &qp->cond, &qp->events_completed);
		break;
	}
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED: {
		struct ibv_srq *srq = ev->element.srq;
		ack(&srq->mutex, &srq->cond, &srq->events_completed);
		break;
	}
	default:
		break;
	}
}
