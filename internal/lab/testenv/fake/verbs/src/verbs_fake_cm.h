/* Connections by the connection manager: types that its two files share. */
#ifndef VERBS_FAKE_CM_H
#define VERBS_FAKE_CM_H

#include "verbs_fake.h"

#include <rdma/rdma_cma.h>

/* What the kernel carries for the user, behind its own header. */
enum {
	REQ_DATA = 56, REP_DATA = 196, REJ_DATA = 148, /* connected */
	SIDR_REQ_DATA = 180, SIDR_REP_DATA = 136,      /* datagrams */
	MAX_DATA = 256,
};

/* Reasons of rejections, statuses of datagram services (InfiniBand specification, 12.6.7.2 and 12.11.1). */
enum { REJ_TIMEOUT = 4, REJ_NO_SERVICE = 8, REJ_CONSUMER = 28, SIDR_UNSUPPORTED = 1, SIDR_REJECT = 2 };

enum cm_state {
	CM_IDLE, CM_BOUND, CM_ADDR, CM_ROUTE, CM_LISTEN,
	CM_REQ_SENT, CM_REQ_RCVD, CM_REP_SENT, CM_REP_RCVD, CM_UP, CM_DREQ_SENT, CM_DREQ_RCVD,
	CM_DOWN,                 /* rejected, timed out, disconnected */
};

struct cm_event {
	struct rdma_cm_event ev;
	struct obj o;
	struct cm_event *next;
	struct cm_id *owner;     /* who cannot be destroyed before the event is acknowledged */
	uint8_t data[MAX_DATA];
};

struct cm_channel {
	struct rdma_event_channel ch;
	struct obj o;
	struct cm_event *first, **last; /* not delivered; the descriptor counts them */
};

struct cm_id {
	struct rdma_cm_id id;
	struct obj o;
	enum cm_state state;
	bool dying, gone;        /* being destroyed; its device was removed */
	bool own_channel;        /* of rdma_create_ep, until it is migrated */
	bool accepted;           /* it came by a listener, whose port it has */
	bool reuse, only6;
	struct fake_device *dev; /* NULL: none yet, or all */
	uint8_t sgid;
	struct cm_id *peer;
	int backlog, waiting;    /* of a listener */
	unsigned reported, acked;
	uint8_t timeout, retry, rnr, responder, initiator;
	uint32_t qpn, remote_qpn, psn;
};

#define ID(p) ((struct cm_id *)(p))
#define CM_CHANNEL(p) ((struct cm_channel *)(p))

/* ---- verbs_fake_cm.c */
struct cm_event *fake_cm_tell(struct cm_id *to, enum rdma_cm_event_type type, int status);
void fake_cm_carry(struct cm_event *e, const void *data, size_t len, size_t size);
bool fake_cm_reach(const struct cm_id *i);
void fake_cm_reject(struct cm_id *dialer, int reason, const void *data, size_t len);
void fake_cm_on(struct cm_id *i, struct fake_device *dev);
void fake_cm_name(struct cm_id *i);
bool fake_cm_gid(const struct sockaddr *a, union ibv_gid *g);
bool fake_cm_any(const union ibv_gid *g);
uint16_t fake_cm_port(const struct sockaddr *a);
struct fake_device *fake_cm_owner(const union ibv_gid *g);
int fake_cm_bind(struct cm_id *i, const struct sockaddr *a);
void fake_cm_way(const struct cm_id *i, struct ibv_ah_attr *av);
int fake_cm_result(int err);     /* takes the lock off: 0, or -1 with errno */
int fake_cm_usable(struct cm_id *i, enum call c, const char *name);

#endif
