/* The connection manager: what two ids say to each other. */
#if __has_include(<rdma/rdma_cma.h>)
#include "verbs_fake_cm.h"

#include <stdlib.h>
#include <string.h>

static const uint32_t qkey = RDMA_UDP_QKEY;

static bool datagrams(const struct cm_id *i) { return i->id.qp_type == IBV_QPT_UD; }

/* fake_cm_reject ends an attempt of either side, for whoever is told. */
void fake_cm_reject(struct cm_id *i, int reason, const void *data, size_t len)
{
	bool ud = datagrams(i);
	i->state = CM_DOWN;
	if (i->peer)
		i->peer->peer = NULL;
	i->peer = NULL;
	if (ud) /* a service for datagrams has other words for it */
		reason = reason == REJ_NO_SERVICE ? SIDR_UNSUPPORTED : SIDR_REJECT;
	fake_cm_carry(fake_cm_tell(i, ud ? RDMA_CM_EVENT_UNREACHABLE : RDMA_CM_EVENT_REJECTED, reason), data, len, ud ? SIDR_REP_DATA : REJ_DATA);
}

EXPORT int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *a)
{
	lock();
	int err = fake_cm_usable(ID(id), CALL_rdma_bind_addr, "rdma_bind_addr");
	if (!err)
		err = fake_cm_bind(ID(id), a);
	return fake_cm_result(err);
}

EXPORT int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int ms)
{
	struct cm_id *i = ID(id);
	struct sockaddr_storage any = {.ss_family = dst->sa_family};
	union ibv_gid g;
	(void)ms;
	lock();
	int err = fake_cm_usable(i, CALL_rdma_resolve_addr, "rdma_resolve_addr");
	if (!err && !fake_cm_gid(dst, &g))
		err = EAFNOSUPPORT;
	if (!err && i->state == CM_IDLE)
		err = fake_cm_bind(i, src ? src : (struct sockaddr *)&any);
	if (!err && i->state != CM_BOUND)
		err = EINVAL;
	if (err)
		return fake_cm_result(err);
	size_t len = dst->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	memcpy(&id->route.addr.dst_storage, dst, len);
	struct fake_device *to = fake_cm_owner(&g);
	int fails = fake_call(CALL_cm_address);
	if (!fails && !to)
		fails = ETIMEDOUT; /* no neighbour answers */
	if (!fails && !i->dev) {
		/* To an address of this machine the way is over the device that has it, and from that address. */
		in_port_t port = i->id.route.addr.src_sin.sin_port; /* at the same place in both families */
		memcpy(&id->route.addr.src_storage, dst, len);
		id->route.addr.src_sin.sin_port = port;
		fake_cm_on(i, to);
	}
	if (!fails && i->dev != to && !fake_cm_reach(i))
		fails = ETIMEDOUT;
	if (!fails)
		i->state = CM_ADDR;
	fake_cm_tell(i, fails ? RDMA_CM_EVENT_ADDR_ERROR : RDMA_CM_EVENT_ADDR_RESOLVED, -fails);
	return fake_cm_result(0);
}

EXPORT int rdma_resolve_route(struct rdma_cm_id *id, int ms)
{
	struct cm_id *i = ID(id);
	(void)ms;
	lock();
	int err = fake_cm_usable(i, CALL_rdma_resolve_route, "rdma_resolve_route");
	if (!err && i->state != CM_ADDR)
		err = EINVAL;
	if (err)
		return fake_cm_result(err);
	int fails = fake_call(CALL_cm_route);
	if (!fails)
		i->state = CM_ROUTE;
	fake_cm_tell(i, fails ? RDMA_CM_EVENT_ROUTE_ERROR : RDMA_CM_EVENT_ROUTE_RESOLVED, -fails);
	return fake_cm_result(0);
}

EXPORT int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	struct cm_id *i = ID(id);
	lock();
	int err = fake_cm_usable(i, CALL_rdma_listen, "rdma_listen");
	if (!err && i->state != CM_BOUND)
		err = EINVAL;
	if (!err) {
		i->state = CM_LISTEN;
		i->backlog = backlog;
	}
	return fake_cm_result(err);
}

/* listener finds who takes a request at the address that it goes to. */
static struct cm_id *listener(const struct cm_id *from)
{
	union ibv_gid want, have;
	fake_cm_gid(&from->id.route.addr.dst_addr, &want);
	for (struct obj *o = fake_first(K_CM_ID); o; o = o->next) {
		struct cm_id *i = container(o, struct cm_id, o);
		const struct sockaddr *a = &i->id.route.addr.src_addr;
		if (i->state != CM_LISTEN || i->dying || i->gone || i->id.ps != from->id.ps || i->id.qp_type != from->id.qp_type ||
		    fake_cm_port(a) != fake_cm_port(&from->id.route.addr.dst_addr))
			continue;
		fake_cm_gid(a, &have);
		if (!memcmp(&have, &want, 16))
			return i;
		if (fake_cm_any(&have) && (a->sa_family == AF_INET6 ? !i->only6 || from->id.route.addr.dst_addr.sa_family == AF_INET6
								    : from->id.route.addr.dst_addr.sa_family == AF_INET))
			return i;
	}
	return NULL;
}

/* take notes what a side says of itself. */
static void take(struct cm_id *i, const struct rdma_conn_param *p)
{
	i->qpn = p->qp_num;
	i->responder = p->responder_resources;
	i->initiator = p->initiator_depth;
}

static void limits(struct cm_id *i)
{
	/* The library puts what the device can do in the place of "as much as can be". */
	if (i->responder == RDMA_MAX_RESP_RES)
		i->responder = (uint8_t)config.attr.max_qp_rd_atom;
	if (i->initiator == RDMA_MAX_INIT_DEPTH)
		i->initiator = (uint8_t)config.attr.max_qp_init_rd_atom;
}

static bool too_many(const struct cm_id *i, const struct rdma_conn_param *p)
{
	return i->id.ps == RDMA_PS_TCP && ((p->responder_resources != RDMA_MAX_RESP_RES && p->responder_resources > config.attr.max_qp_rd_atom) ||
					   (p->initiator_depth != RDMA_MAX_INIT_DEPTH && p->initiator_depth > config.attr.max_qp_init_rd_atom));
}

/* ask brings a request to its listener. */
static void ask(struct cm_id *i, struct cm_id *to, const struct rdma_conn_param *p)
{
	struct cm_id *c = NEW(struct cm_id, K_CM_ID, NULL);
	if (!c)
		return;
	c->id.channel = to->id.channel;
	c->id.context = to->id.context;
	c->id.ps = to->id.ps;
	c->id.qp_type = to->id.qp_type;
	c->id.route.addr.src_storage = i->id.route.addr.dst_storage;
	c->id.route.addr.dst_storage = i->id.route.addr.src_storage;
	c->state = CM_REQ_RCVD;
	c->accepted = true;
	c->peer = i;
	c->psn = i->psn;
	c->retry = i->retry;
	c->rnr = i->rnr;
	c->remote_qpn = i->qpn;
	c->timeout = i->timeout;
	union ibv_gid g;
	fake_cm_gid(&c->id.route.addr.src_addr, &g);
	fake_cm_on(c, fake_cm_owner(&g));
	fake_cm_name(c);
	i->peer = c;
	to->waiting++;
	struct cm_event *e = fake_cm_tell(to, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	e->ev.id = &c->id;
	e->ev.listen_id = &to->id;
	fake_cm_carry(e, p->private_data, p->private_data_len, datagrams(i) ? SIDR_REQ_DATA : REQ_DATA);
	if (datagrams(i))
		return; /* of the sender's queue pair such a request says nothing */
	struct rdma_conn_param *q = &e->ev.param.conn;
	q->responder_resources = i->initiator; /* what one may start, the other one serves */
	q->initiator_depth = i->responder;
	q->flow_control = p->flow_control;
	q->retry_count = i->retry;
	q->rnr_retry_count = i->rnr;
	q->srq = p->srq;
	q->qp_num = i->qpn;
}

EXPORT int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
	static uint32_t psns = 0x1234;
	struct cm_id *i = ID(id), *to;
	lock();
	int err = fake_cm_usable(i, CALL_rdma_connect, "rdma_connect");
	if (!err && (i->state != CM_ROUTE || p->private_data_len > (datagrams(i) ? SIDR_REQ_DATA : REQ_DATA) || too_many(i, p)))
		err = EINVAL;
	if (err)
		return fake_cm_result(err);
	take(i, p);
	limits(i);
	i->retry = p->retry_count & 7;
	i->rnr = p->rnr_retry_count & 7;
	i->psn = psns = (psns * 1103515245u + 12345) & 0xffffff;
	i->state = CM_REQ_SENT;
	int fails = fake_call(CALL_cm_connect);
	if (fails) {
		i->state = CM_DOWN;
		fake_cm_tell(i, RDMA_CM_EVENT_CONNECT_ERROR, -fails);
	} else if (!fake_cm_reach(i)) {
		i->state = CM_DOWN;
		fake_cm_tell(i, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
	} else if (!(to = listener(i))) {
		fake_cm_reject(i, REJ_NO_SERVICE, NULL, 0);
	} else if (to->waiting < to->backlog) {
		ask(i, to, p);
	} /* beyond the backlog requests are dropped, and the one who asks asks again, until "cm expire" */
	return fake_cm_result(0);
}

EXPORT int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
	struct cm_id *i = ID(id);
	lock();
	int err = fake_cm_usable(i, CALL_rdma_accept, "rdma_accept");
	if (!err && (i->state != CM_REQ_RCVD || p->private_data_len > (datagrams(i) ? SIDR_REP_DATA : REP_DATA) || too_many(i, p)))
		err = EINVAL;
	if (err)
		return fake_cm_result(err);
	take(i, p);
	limits(i);
	struct cm_id *to = i->peer;
	int fails = fake_call(CALL_cm_accept);
	if (fails) {
		i->state = CM_DOWN;
		i->peer = NULL;
		if (to)
			fake_cm_reject(to, REJ_TIMEOUT, NULL, 0);
		fake_cm_tell(i, RDMA_CM_EVENT_UNREACHABLE, -fails);
	} else if (datagrams(i)) {
		i->state = CM_UP;
		i->peer = NULL;
		if (to) {
			to->state = CM_UP;
			to->peer = NULL;
		}
		if (to && fake_cm_reach(i)) {
			struct cm_event *e = fake_cm_tell(to, RDMA_CM_EVENT_ESTABLISHED, 0);
			fake_cm_carry(e, p->private_data, p->private_data_len, SIDR_REP_DATA);
			fake_cm_way(to, &e->ev.param.ud.ah_attr);
			e->ev.param.ud.qp_num = i->qpn;
			e->ev.param.ud.qkey = qkey;
		}
	} else {
		i->state = CM_REP_SENT;
		if (to && fake_cm_reach(i)) {
			to->state = CM_REP_RCVD;
			to->remote_qpn = i->qpn;
			to->rnr = p->rnr_retry_count & 7;
			to->initiator = i->responder;
			to->responder = i->initiator;
			struct cm_event *e = fake_cm_tell(to, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
			fake_cm_carry(e, p->private_data, p->private_data_len, REP_DATA);
			struct rdma_conn_param *q = &e->ev.param.conn;
			q->responder_resources = i->initiator;
			q->initiator_depth = i->responder;
			q->flow_control = p->flow_control;
			q->rnr_retry_count = to->rnr;
			q->srq = p->srq;
			q->qp_num = i->qpn;
		}
	}
	return fake_cm_result(0);
}

EXPORT int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t len)
{
	struct cm_id *i = ID(id);
	lock();
	int err = fake_cm_usable(i, CALL_rdma_reject, "rdma_reject");
	if (!err && ((i->state != CM_REQ_RCVD && i->state != CM_REP_RCVD) || len > (datagrams(i) ? SIDR_REP_DATA : REJ_DATA)))
		err = EINVAL;
	if (!err) {
		struct cm_id *to = i->peer;
		i->state = CM_DOWN;
		i->peer = NULL;
		if (to && fake_cm_reach(i))
			fake_cm_reject(to, REJ_CONSUMER, data, len);
	}
	return fake_cm_result(err);
}

EXPORT int rdma_establish(struct rdma_cm_id *id)
{
	struct cm_id *i = ID(id);
	lock();
	int err = fake_cm_usable(i, CALL_rdma_establish, "rdma_establish");
	if (!err && i->state != CM_REP_RCVD)
		err = EINVAL;
	if (!err) {
		i->state = CM_UP;
		if (i->peer && fake_cm_reach(i)) {
			i->peer->state = CM_UP;
			fake_cm_tell(i->peer, RDMA_CM_EVENT_ESTABLISHED, 0);
		}
	}
	return fake_cm_result(err);
}

EXPORT int rdma_disconnect(struct rdma_cm_id *id)
{
	struct cm_id *i = ID(id);
	lock();
	int err = fake_cm_usable(i, CALL_rdma_disconnect, "rdma_disconnect");
	if (!err && i->state != CM_UP && i->state != CM_DREQ_RCVD)
		err = EINVAL;
	if (!err && !datagrams(i)) { /* of those nobody is told, and it is no error */
		struct cm_id *to = fake_cm_reach(i) ? i->peer : NULL;
		bool last = i->state == CM_DREQ_RCVD;
		i->state = last ? CM_DOWN : CM_DREQ_SENT;
		if (to && to->state == CM_UP) {
			to->state = CM_DREQ_RCVD;
			fake_cm_tell(to, RDMA_CM_EVENT_DISCONNECTED, 0);
		} else if (to && last) { /* the answer to the other one's */
			to->state = CM_DOWN;
			fake_cm_tell(to, RDMA_CM_EVENT_DISCONNECTED, 0);
		} else if (!i->peer && !last) {
			i->state = CM_DOWN;
			fake_cm_tell(i, RDMA_CM_EVENT_DISCONNECTED, 0);
		}
	}
	return fake_cm_result(err);
}

EXPORT int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t len)
{
	struct cm_id *i = ID(id);
	lock();
	int err = fake_cm_usable(i, CALL_rdma_set_option, "rdma_set_option");
	size_t want = name == RDMA_OPTION_ID_TOS || name == RDMA_OPTION_ID_ACK_TIMEOUT ? 1 : sizeof(int);
	if (!err && (level != RDMA_OPTION_ID || name < RDMA_OPTION_ID_TOS || name > RDMA_OPTION_ID_ACK_TIMEOUT))
		err = ENOSYS;
	if (!err && len != want)
		err = EINVAL;
	if (!err && (name == RDMA_OPTION_ID_REUSEADDR || name == RDMA_OPTION_ID_AFONLY)) {
		if (i->state != CM_IDLE)
			err = EINVAL;
		else if (name == RDMA_OPTION_ID_REUSEADDR)
			i->reuse = *(int *)value;
		else
			i->only6 = *(int *)value;
	} else if (!err && name == RDMA_OPTION_ID_ACK_TIMEOUT) {
		if (datagrams(i))
			err = EINVAL;
		else
			i->timeout = *(uint8_t *)value;
	}
	return fake_cm_result(err);
}

/* rdma_init_qp_attr fills in what the transition to a->qp_state takes. */
EXPORT int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *a, int *mask)
{
	struct cm_id *i = ID(id);
	enum ibv_qp_state to = a->qp_state;
	lock();
	int err = fake_cm_usable(i, CALL_rdma_init_qp_attr, "rdma_init_qp_attr");
	bool rc = i->id.qp_type == IBV_QPT_RC;
	bool agreed = i->state >= CM_REQ_RCVD && i->state <= CM_UP;
	if (!err && (!i->dev || (to != IBV_QPS_INIT && to != IBV_QPS_RTR && to != IBV_QPS_RTS)))
		err = EINVAL;
	if (!err && !datagrams(i) && i->state > CM_LISTEN && to != IBV_QPS_INIT && !agreed)
		err = EINVAL;
	if (err)
		return fake_cm_result(err);
	memset(a, 0, sizeof(*a));
	a->qp_state = to;
	*mask = IBV_QP_STATE;
	if (to == IBV_QPS_INIT || datagrams(i) || !agreed) { /* also where another state was meant: nothing is known of the peer */
		*mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | (datagrams(i) ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
		a->port_num = 1;
		a->qkey = datagrams(i) ? qkey : 0;
		a->qp_access_flags = !datagrams(i) && agreed ? IBV_ACCESS_REMOTE_WRITE | (rc && i->responder ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0) : 0;
	} else if (to == IBV_QPS_RTR) {
		*mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
		fake_cm_way(i, &a->ah_attr);
		a->path_mtu = config.infiniband ? IBV_MTU_4096 : IBV_MTU_1024;
		a->dest_qp_num = i->remote_qpn;
		a->rq_psn = i->psn;
		if (rc) {
			*mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
			a->max_dest_rd_atomic = i->responder;
		}
	} else {
		*mask |= IBV_QP_SQ_PSN;
		a->sq_psn = i->psn;
		if (rc) {
			*mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
			a->timeout = i->timeout ? i->timeout : 19;
			a->retry_cnt = i->retry;
			a->rnr_retry = i->rnr;
			a->max_rd_atomic = i->initiator;
		}
	}
	return fake_cm_result(0);
}
#endif
