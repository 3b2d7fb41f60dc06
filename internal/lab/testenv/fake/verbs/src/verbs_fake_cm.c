/* The connection manager as a part of this library: event channels, ids and their addresses. Everything that the kernel would send to
 * another host happens at once, under the lock; what comes of it waits in the event channels. */
#if __has_include(<rdma/rdma_cma.h>)
#include "verbs_fake_cm.h"

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_PORT = 49152 };

static pthread_cond_t acked = PTHREAD_COND_INITIALIZER;

/* The library opens devices by itself. Nobody can do anything with these contexts but ask for the name of their device. */
static struct fake_context contexts[MAX_DEVICES];

int fake_cm_result(int err)
{
	unlock();
	if (err)
		errno = err;
	return err ? -1 : 0;
}

/* fake_cm_usable counts a call on an id, and says whether it may go on. */
int fake_cm_usable(struct cm_id *i, enum call c, const char *name)
{
	int err = fake_call(c);
	if (err)
		return err;
	if (!ALIVE(i, K_CM_ID, name))
		return EINVAL;
	if (i->dying) {
		fake_violation("%s: the id is being destroyed", name);
		return EINVAL;
	}
	return i->gone ? ENODEV : 0;
}

/* ---- events */

struct cm_event *fake_cm_tell(struct cm_id *to, enum rdma_cm_event_type type, int status)
{
	static struct cm_event nowhere;
	struct cm_channel *ch = CM_CHANNEL(to->id.channel);
	uint64_t one = 1;
	struct cm_event *e = to->dying ? NULL : NEW(struct cm_event, K_CM_EVENT, NULL);
	if (!e)
		return &nowhere;
	e->owner = to;
	e->ev.id = &to->id;
	e->ev.event = type;
	e->ev.status = status;
	*ch->last = e;
	ch->last = &e->next;
	if (write(ch->ch.fd, &one, sizeof(one)) != sizeof(one))
		fake_violation("an event channel cannot be written: %s", strerror(errno));
	return e;
}

/* fake_cm_carry gives an event private data, with zeros behind it up to size. */
void fake_cm_carry(struct cm_event *e, const void *data, size_t len, size_t size)
{
	memset(e->data, 0, sizeof(e->data));
	if (len)
		memcpy(e->data, data, len);
	e->ev.param.conn.private_data = e->data; /* as a parameter of datagrams it begins in the same way */
	e->ev.param.conn.private_data_len = (uint8_t)size;
}

static void drop(struct cm_id *i);

/* forget takes back the events of an id that were not delivered, and moves them to another channel where there is one. */
static void forget(struct cm_id *i, struct cm_channel *to)
{
	struct cm_channel *ch = CM_CHANNEL(i->id.channel);
	for (struct cm_event **p = &ch->first; *p;) {
		struct cm_event *e = *p;
		if (e->owner != i) {
			p = &e->next;
			continue;
		}
		*p = e->next;
		e->next = NULL;
		if (ch->last == &e->next || !*p)
			ch->last = p;
		/* A thread that has read the count, also just now, finds the queue shorter, and reads again. */
		struct pollfd pf = {.fd = ch->ch.fd, .events = POLLIN};
		uint64_t one;
		if (poll(&pf, 1, 0) == 1 && read(ch->ch.fd, &one, sizeof(one)) != sizeof(one) && errno != EAGAIN)
			fake_violation("an event channel cannot be read: %s", strerror(errno));
		if (to) {
			one = 1;
			*to->last = e;
			to->last = &e->next;
			if (write(to->ch.fd, &one, sizeof(one)) != sizeof(one))
				fake_violation("an event channel cannot be written: %s", strerror(errno));
			continue;
		}
		if (e->ev.event == RDMA_CM_EVENT_CONNECT_REQUEST)
			drop(ID(e->ev.id)); /* nobody will hear of it */
		fake_bury(&e->o);
	}
	for (ch->last = &ch->first; *ch->last; ch->last = &(*ch->last)->next)
		;
}

EXPORT struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct cm_channel *ch = NULL;
	lock();
	int err = fake_start() ? fake_call(CALL_rdma_create_event_channel) : ENODEV;
	if (!err && !(ch = NEW(struct cm_channel, K_CM_CHANNEL, NULL)))
		err = ENOMEM;
	if (ch) {
		ch->last = &ch->first;
		ch->ch.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
		if (ch->ch.fd < 0) {
			err = errno;
			fake_bury(&ch->o);
			ch = NULL;
		}
	}
	fake_cm_result(err);
	return ch ? &ch->ch : NULL;
}

EXPORT void rdma_destroy_event_channel(struct rdma_event_channel *c)
{
	struct cm_channel *ch = CM_CHANNEL(c);
	lock();
	fake_call(CALL_rdma_destroy_event_channel);
	if (ALIVE(ch, K_CM_CHANNEL, "rdma_destroy_event_channel")) {
		for (struct obj *o = fake_first(K_CM_ID); o; o = o->next)
			if (container(o, struct cm_id, o)->id.channel == c)
				fake_violation("rdma_destroy_event_channel: id #%llu is not destroyed", (unsigned long long)o->serial);
		close(ch->ch.fd);
		ch->ch.fd = -1;
		fake_bury(&ch->o);
	}
	unlock();
}

EXPORT int rdma_get_cm_event(struct rdma_event_channel *c, struct rdma_cm_event **out)
{
	struct cm_channel *ch = CM_CHANNEL(c);
	struct cm_event *e = NULL;
	lock();
	int err = fake_call(CALL_rdma_get_cm_event);
	if (!err && !ALIVE(ch, K_CM_CHANNEL, "rdma_get_cm_event"))
		err = EINVAL;
	if (err)
		return fake_cm_result(err);
	unlock();
	while (!e) {
		uint64_t one;
		ssize_t n = read(ch->ch.fd, &one, sizeof(one));
		if (n != sizeof(one)) {
			errno = n < 0 ? errno : EIO;
			return -1;
		}
		lock();
		e = ch->first;
		if (e) {
			ch->first = e->next;
			if (!ch->first)
				ch->last = &ch->first;
			e->owner->reported++;
			if (e->ev.event == RDMA_CM_EVENT_ADDR_RESOLVED)
				fake_cm_name(e->owner); /* the library asks the kernel for the device now, and not before */
			if (e->ev.event == RDMA_CM_EVENT_CONNECT_REQUEST)
				e->owner->waiting--;
		}
		unlock();
	}
	*out = &e->ev;
	return 0;
}

EXPORT int rdma_ack_cm_event(struct rdma_cm_event *ev)
{
	struct cm_event *e = (struct cm_event *)ev;
	lock();
	int err = fake_call(CALL_rdma_ack_cm_event);
	if (!err && !ALIVE(e, K_CM_EVENT, "rdma_ack_cm_event"))
		err = EINVAL;
	if (!err) {
		e->owner->acked++;
		/* What the user still holds of it is not its any more. */
		memset(e->data, 0xdb, sizeof(e->data));
		memset(&e->ev, 0xdb, sizeof(e->ev));
		fake_bury(&e->o);
		pthread_cond_broadcast(&acked);
	}
	return fake_cm_result(err);
}

/* ---- ids */

static struct cm_id *new_id(struct rdma_event_channel *ch, void *context, enum rdma_port_space ps, enum ibv_qp_type type)
{
	struct cm_id *i = NEW(struct cm_id, K_CM_ID, NULL);
	if (!i)
		return NULL;
	i->id.channel = ch;
	i->id.context = context;
	i->id.ps = ps;
	i->id.qp_type = type;
	return i;
}

EXPORT int rdma_create_id(struct rdma_event_channel *c, struct rdma_cm_id **out, void *context, enum rdma_port_space ps)
{
	struct cm_id *i = NULL;
	lock();
	int err = fake_call(CALL_rdma_create_id);
	if (!err && !ALIVE(CM_CHANNEL(c), K_CM_CHANNEL, "rdma_create_id"))
		err = EINVAL;
	if (!err && ps != RDMA_PS_TCP && ps != RDMA_PS_UDP && ps != RDMA_PS_IB && ps != RDMA_PS_IPOIB)
		err = EPROTONOSUPPORT;
	if (!err && !(i = new_id(c, context, ps, ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB ? IBV_QPT_UD : IBV_QPT_RC)))
		err = ENOMEM;
	if (!err)
		*out = &i->id;
	return fake_cm_result(err);
}

/* rdma_create_ep is the one way to an id whose queue pair is neither RC nor UD. Here it is for passive ones, which wait for nothing. */
EXPORT int rdma_create_ep(struct rdma_cm_id **out, struct rdma_addrinfo *res, struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	struct cm_id *i = NULL;
	lock();
	int err = fake_call(CALL_rdma_create_ep);
	unlock();
	if (!err && (!(res->ai_flags & RAI_PASSIVE) || pd || init))
		err = EOPNOTSUPP;
	struct rdma_event_channel *c = err ? NULL : rdma_create_event_channel();
	if (!err && !c)
		err = errno;
	lock();
	if (!err && !(i = new_id(c, NULL, (enum rdma_port_space)res->ai_port_space, (enum ibv_qp_type)res->ai_qp_type)))
		err = ENOMEM;
	if (!err) {
		i->own_channel = true;
		err = fake_cm_bind(i, res->ai_src_addr);
	}
	if (err && i)
		fake_bury(&i->o);
	if (!err)
		*out = &i->id;
	unlock();
	if (err && c)
		rdma_destroy_event_channel(c);
	lock();
	return fake_cm_result(err);
}

EXPORT int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *c)
{
	struct cm_id *i = ID(id);
	struct rdma_event_channel *old = NULL;
	lock();
	int err = fake_cm_usable(i, CALL_rdma_migrate_id, "rdma_migrate_id");
	if (!err && !ALIVE(CM_CHANNEL(c), K_CM_CHANNEL, "rdma_migrate_id"))
		err = EINVAL;
	if (!err) {
		forget(i, CM_CHANNEL(c));
		if (i->own_channel)
			old = id->channel;
		i->own_channel = false;
		id->channel = c;
	}
	unlock();
	if (old)
		rdma_destroy_event_channel(old);
	lock();
	return fake_cm_result(err);
}

/* leave tells the peer of an id that it goes, as the kernel does. */
static void leave(struct cm_id *i)
{
	struct cm_id *p = i->peer;
	if (!p)
		return;
	i->peer = p->peer = NULL;
	if (!fake_cm_reach(i)) {
		p->peer = NULL;
		return; /* nobody hears of it; the script's "cm expire" does */
	}
	switch (i->state) {
	case CM_REQ_SENT:
		fake_cm_reject(p, REJ_TIMEOUT, NULL, 0);
		break;
	case CM_REQ_RCVD:
	case CM_REP_SENT:
	case CM_REP_RCVD:
		fake_cm_reject(p, REJ_CONSUMER, NULL, 0);
		break;
	case CM_UP:
		p->state = CM_DREQ_RCVD;
		fake_cm_tell(p, RDMA_CM_EVENT_DISCONNECTED, 0);
		break;
	case CM_DREQ_RCVD:
		p->state = CM_DOWN;
		fake_cm_tell(p, RDMA_CM_EVENT_DISCONNECTED, 0);
		break;
	default:
		break;
	}
}

/* drop ends an id that nobody knows. */
static void drop(struct cm_id *i)
{
	i->dying = true;
	leave(i);
	forget(i, NULL); /* they are behind the one by which it came */
	fake_bury(&i->o);
}

EXPORT int rdma_destroy_id(struct rdma_cm_id *id)
{
	struct cm_id *i = ID(id);
	struct timespec until;
	lock();
	int err = fake_call(CALL_rdma_destroy_id);
	if (!err && !ALIVE(i, K_CM_ID, "rdma_destroy_id"))
		err = EINVAL;
	if (!err && i->dying) {
		fake_violation("rdma_destroy_id: the id is being destroyed");
		err = EINVAL;
	}
	if (err)
		return fake_cm_result(err);
	i->dying = true;
	leave(i);
	forget(i, NULL);
	/* The real library waits for ever; here a program that never acknowledges is told so. */
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 5;
	while (i->acked != i->reported && err == 0)
		err = pthread_cond_timedwait(&acked, &the_lock, &until);
	if (i->acked != i->reported)
		fake_violation("rdma_destroy_id: %u events were delivered and never acknowledged; the real library waits here for ever",
			       i->reported - i->acked);
	struct rdma_event_channel *own = i->own_channel ? id->channel : NULL;
	fake_bury(&i->o);
	unlock();
	if (own)
		rdma_destroy_event_channel(own);
	return 0;
}

/* ---- addresses. An IP address belongs to the device that has it as a GID. */

bool fake_cm_gid(const struct sockaddr *a, union ibv_gid *g)
{
	memset(g, 0, sizeof(*g));
	if (a && a->sa_family == AF_INET) {
		g->raw[10] = g->raw[11] = 0xff;
		memcpy(g->raw + 12, &((const struct sockaddr_in *)a)->sin_addr, 4);
		return true;
	}
	if (a && a->sa_family == AF_INET6) {
		memcpy(g->raw, &((const struct sockaddr_in6 *)a)->sin6_addr, 16);
		return true;
	}
	return false;
}

bool fake_cm_any(const union ibv_gid *g)
{
	static const union ibv_gid six, four = {.raw = {[10] = 0xff, [11] = 0xff}};
	return !memcmp(g, &six, 16) || !memcmp(g, &four, 16);
}

uint16_t fake_cm_port(const struct sockaddr *a)
{
	return be16toh(a->sa_family == AF_INET ? ((const struct sockaddr_in *)a)->sin_port : ((const struct sockaddr_in6 *)a)->sin6_port);
}

static void set_port(struct sockaddr *a, uint16_t port)
{
	if (a->sa_family == AF_INET)
		((struct sockaddr_in *)a)->sin_port = htobe16(port);
	else
		((struct sockaddr_in6 *)a)->sin6_port = htobe16(port);
}

/* place is where a device has a GID, the last one, which is that of RoCE v2; -1: nowhere. */
static int place(const struct fake_device *d, const union ibv_gid *g)
{
	int at = -1;
	for (int k = 0; k < MAX_GIDS; k++)
		if (!memcmp(&d->port.gid[k], g, 16) && (at < 0 || d->port.gid_type[k] == IBV_GID_TYPE_ROCE_V2))
			at = k;
	return at;
}

struct fake_device *fake_cm_owner(const union ibv_gid *g)
{
	for (int k = 0; k < config.devices; k++)
		if (!fake_cm_any(g) && place(&devices[k], g) >= 0)
			return &devices[k];
	return NULL;
}

void fake_cm_on(struct cm_id *i, struct fake_device *dev)
{
	union ibv_gid g;
	i->dev = dev;
	fake_cm_gid(&i->id.route.addr.src_addr, &g);
	int at = place(dev, &g);
	i->sgid = (uint8_t)(at < 0 ? 0 : at);
}

/* fake_cm_name lets the user see the device. */
void fake_cm_name(struct cm_id *i)
{
	if (!i->dev)
		return;
	struct ibv_context *c = &contexts[i->dev->index].v.context;
	c->device = &i->dev->ibv;
	c->abi_compat = __VERBS_ABI_IS_EXTENDED;
	i->id.verbs = c;
	i->id.port_num = 1;
}

/* taken says whether another id has the port, at that address or at all. */
static bool taken(const struct cm_id *i, const union ibv_gid *g, uint16_t port)
{
	for (struct obj *o = fake_first(K_CM_ID); o; o = o->next) {
		struct cm_id *x = container(o, struct cm_id, o);
		union ibv_gid theirs;
		if (x == i || x->accepted || x->state == CM_IDLE || x->id.ps != i->id.ps || (x->reuse && i->reuse) ||
		    !fake_cm_gid(&x->id.route.addr.src_addr, &theirs) || fake_cm_port(&x->id.route.addr.src_addr) != port)
			continue;
		if (fake_cm_any(g) || fake_cm_any(&theirs) || !memcmp(g, &theirs, 16))
			return true;
	}
	return false;
}

int fake_cm_bind(struct cm_id *i, const struct sockaddr *a)
{
	static uint16_t next = FIRST_PORT;
	union ibv_gid g;
	if (i->state != CM_IDLE)
		return EINVAL;
	if (!fake_cm_gid(a, &g))
		return EAFNOSUPPORT;
	struct fake_device *dev = fake_cm_owner(&g);
	if (!dev && !fake_cm_any(&g))
		return EADDRNOTAVAIL;
	uint16_t port = fake_cm_port(a);
	if (port ? taken(i, &g, port) : false)
		return EADDRINUSE;
	for (int tries = 0; !port && tries < 1 << 14; tries++) {
		if (!taken(i, &g, next))
			port = next;
		next = next == UINT16_MAX ? FIRST_PORT : (uint16_t)(next + 1);
	}
	if (!port)
		return EADDRNOTAVAIL;
	memcpy(&i->id.route.addr.src_storage, a, a->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
	set_port(&i->id.route.addr.src_addr, port);
	i->state = CM_BOUND;
	if (dev) {
		fake_cm_on(i, dev);
		fake_cm_name(i);
	}
	return 0;
}

/* fake_cm_way is the address vector to the peer of an id. */
void fake_cm_way(const struct cm_id *i, struct ibv_ah_attr *av)
{
	union ibv_gid g;
	memset(av, 0, sizeof(*av));
	fake_cm_gid(&i->id.route.addr.dst_addr, &g);
	struct fake_device *to = fake_cm_owner(&g);
	av->is_global = 1;
	av->grh.dgid = g;
	av->grh.sgid_index = i->sgid;
	av->grh.hop_limit = 64;
	av->port_num = 1;
	if (config.infiniband && to)
		av->dlid = (uint16_t)(to->index + 1);
}

/* fake_cm_reach says whether anything gets to the peer of an id. */
bool fake_cm_reach(const struct cm_id *i)
{
	union ibv_gid g;
	fake_cm_gid(&i->id.route.addr.dst_addr, &g);
	struct fake_device *to = fake_cm_owner(&g);
	return to && i->dev && !i->dev->port.cut && !to->port.cut && i->dev->port.state == IBV_PORT_ACTIVE && to->port.state == IBV_PORT_ACTIVE;
}

/* ---- what the script does */

void fake_cm_expire(void)
{
	for (struct obj *o = fake_first(K_CM_ID); o; o = o->next) {
		struct cm_id *i = container(o, struct cm_id, o);
		enum cm_state was = i->state;
		if (i->dying || (was != CM_REQ_SENT && was != CM_REP_SENT && was != CM_DREQ_SENT))
			continue;
		leave(i);
		i->state = CM_DOWN;
		fake_cm_tell(i, was == CM_DREQ_SENT ? RDMA_CM_EVENT_DISCONNECTED : RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
	}
}

void fake_cm_remove(struct fake_device *dev)
{
	for (struct obj *o = fake_first(K_CM_ID); o; o = o->next) {
		struct cm_id *i = container(o, struct cm_id, o);
		if (i->dev == dev && !i->gone) {
			fake_cm_tell(i, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
			i->gone = true;
		}
	}
}

void fake_cm_tell_all(int type)
{
	for (struct obj *o = fake_first(K_CM_ID); o; o = o->next)
		fake_cm_tell(container(o, struct cm_id, o), (enum rdma_cm_event_type)type, 0);
}
#else
#include "verbs_fake.h"

void fake_cm_expire(void) {}
void fake_cm_remove(struct fake_device *dev) { (void)dev; }
void fake_cm_tell_all(int type) { (void)type; }
#endif
