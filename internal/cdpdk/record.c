//go:build dpdk && invariants

#include "shim.h"

#include <errno.h>
#include <stdlib.h>
#include <rte_flow.h>

// A device of a test takes every rule without a certain action, and marks all packets with the mark of the newest rule.

struct recorded {
	uint32_t mark;
};

static int flows;
static uint32_t newest;
static int without = -1;

static int record_validate(uint16_t port, const struct rte_flow_attr *attr, const struct rte_flow_item *items, const struct rte_flow_action *a, struct rte_flow_error *err)
{
	(void)port, (void)attr, (void)items;
	for (; a->type != RTE_FLOW_ACTION_TYPE_END; a++)
		if ((int)a->type == without)
			return rte_flow_error_set(err, ENOTSUP, RTE_FLOW_ERROR_TYPE_ACTION, a, "the device has no such action");
	return 0;
}

static int record_create(uint16_t port, const struct rte_flow_attr *attr, const struct rte_flow_item *items, const struct rte_flow_action *a, struct rte_flow **made, struct rte_flow_error *err)
{
	if (record_validate(port, attr, items, a, err) < 0)
		return -ENOTSUP;
	struct recorded *r = calloc(1, sizeof *r);
	for (; a->type != RTE_FLOW_ACTION_TYPE_END; a++)
		if (a->type == RTE_FLOW_ACTION_TYPE_MARK)
			newest = r->mark = ((const struct rte_flow_action_mark *)a->conf)->id;
	flows++;
	*made = (struct rte_flow *)r;
	return 0;
}

static int record_destroy(uint16_t port, struct rte_flow *f, struct rte_flow_error *err)
{
	(void)port, (void)err;
	flows--;
	free(f);
	return 0;
}

static int record_isolate(uint16_t port, int on, struct rte_flow_error *err)
{
	(void)port, (void)on, (void)err;
	return 0;
}

static int record_query(uint16_t port, struct rte_flow *f, const struct rte_flow_action *a, void *to, struct rte_flow_error *err)
{
	struct rte_flow_query_count *q = to;
	(void)port, (void)f, (void)a, (void)err;
	q->hits_set = q->bytes_set = 1;
	q->hits = 7;
	q->bytes = 700;
	return 0;
}

static uint16_t record_rx(uint16_t port, uint16_t queue, struct rte_mbuf **m, uint16_t n)
{
	n = rte_eth_rx_burst(port, queue, m, n);
	for (int i = 0; i < n && newest; i++) {
		m[i]->ol_flags |= RTE_MBUF_F_RX_FDIR | RTE_MBUF_F_RX_FDIR_ID;
		m[i]->hash.fdir.hi = newest;
	}
	return n;
}

void ps_record(int action)
{
	ps_refuse(-1, 0);
	newest = 0;
	without = action;
	ps_ops.flow_validate = record_validate;
	ps_ops.flow_create = record_create;
	ps_ops.flow_destroy = record_destroy;
	ps_ops.flow_isolate = record_isolate;
	ps_ops.flow_query = record_query;
	ps_ops.rx = record_rx;
}

int ps_recorded(void) { return flows; }
