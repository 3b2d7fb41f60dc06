//go:build dpdk && invariants

#include "shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <rte_flow.h>
#include <rte_mbuf_dyn.h>

#include "record.h"

// A device of a test is net_ring with more than that has. It takes every rule without a certain action, and marks all packets with the mark of the
// newest rule.

struct recorded {
	uint32_t mark;
};

enum { QUEUES = 8 };

static int flows, decapsulates;
static uint32_t newest;
static int without = -1;
static uint32_t has;
static struct {
	struct rte_mempool *head, *rest;
	uint16_t at;
	int stopped;
} queues[QUEUES];
static struct ps_recorded seen;

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
	decapsulates = 0;
	for (; a->type != RTE_FLOW_ACTION_TYPE_END; a++) {
		if (a->type == RTE_FLOW_ACTION_TYPE_MARK)
			newest = r->mark = ((const struct rte_flow_action_mark *)a->conf)->id;
		if (a->type == RTE_FLOW_ACTION_TYPE_VXLAN_DECAP)
			decapsulates = 50;
		if (a->type == RTE_FLOW_ACTION_TYPE_RSS)
			seen.flow_key = ((const struct rte_flow_action_rss *)a->conf)->key_len;
	}
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

static int record_info(uint16_t port, struct rte_eth_dev_info *i)
{
	int r = ps_real.info(port, i);
	if (has & PS_SPLIT) {
		i->rx_offload_capa |= RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT;
		i->rx_seg_capa.multi_pools = 1;
		i->rx_seg_capa.max_nseg = 2;
	}
	if (has & PS_TIMES) {
		i->rx_offload_capa |= RTE_ETH_RX_OFFLOAD_TIMESTAMP;
		i->tx_offload_capa |= RTE_ETH_TX_OFFLOAD_SEND_ON_TIMESTAMP;
	}
	if (has & PS_CUT)
		i->tx_offload_capa |= RTE_ETH_TX_OFFLOAD_TCP_TSO | RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM | RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
	if (has & PS_HASH) {
		i->rx_offload_capa |= RTE_ETH_RX_OFFLOAD_RSS_HASH;
		i->flow_type_rss_offloads = RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP;
		i->hash_key_size = 40;
		i->reta_size = 128;
	}
	if (has & PS_QUEUES)
		i->dev_capa |= RTE_ETH_DEV_CAPA_RUNTIME_RX_QUEUE_SETUP;
	return r;
}

static int record_configure(uint16_t port, uint16_t rx, uint16_t tx, const struct rte_eth_conf *conf)
{
	struct rte_eth_dev_info i;
	struct rte_eth_conf c = *conf;
	ps_real.info(port, &i);
	seen.configured++;
	seen.rx_offloads = c.rxmode.offloads;
	seen.tx_offloads = c.txmode.offloads;
	seen.key = c.rx_adv_conf.rss_conf.rss_key_len;
	if (seen.key)
		memcpy(seen.key_bytes, c.rx_adv_conf.rss_conf.rss_key, seen.key);
	memset(queues, 0, sizeof queues);
	c.rxmode.offloads &= i.rx_offload_capa;
	c.txmode.offloads &= i.tx_offload_capa;
	c.rxmode.mq_mode = RTE_ETH_MQ_RX_NONE;
	memset(&c.rx_adv_conf, 0, sizeof c.rx_adv_conf);
	return ps_real.configure(port, rx, tx, &c);
}

static int record_rx_setup(uint16_t port, uint16_t queue, uint16_t depth, unsigned socket, const struct rte_eth_rxconf *conf, struct rte_mempool *pool)
{
	struct rte_eth_rxconf c = *conf;
	if (queue >= QUEUES)
		return -EINVAL;
	queues[queue].head = NULL;
	if (c.rx_nseg == 2) {
		if (!(c.offloads & RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT) || c.rx_seg[0].split.length == 0 || c.rx_seg[1].split.length != 0)
			return -EINVAL;
		queues[queue].head = c.rx_seg[0].split.mp;
		queues[queue].at = c.rx_seg[0].split.length;
		queues[queue].rest = pool = c.rx_seg[1].split.mp;
	}
	if (queues[queue].stopped) // net_ring does not set up a queue of a port that runs
		return 0;
	c.offloads = 0;
	c.rx_seg = NULL;
	c.rx_nseg = 0;
	return ps_real.rx_setup(port, queue, depth, socket, &c, pool);
}

static int record_tx_setup(uint16_t port, uint16_t queue, uint16_t depth, unsigned socket, const struct rte_eth_txconf *conf)
{
	struct rte_eth_txconf c = *conf;
	c.offloads = 0;
	return ps_real.tx_setup(port, queue, depth, socket, &c);
}

static int record_reta(uint16_t port, struct rte_eth_rss_reta_entry64 *conf, uint16_t size)
{
	(void)port;
	seen.spread = 0;
	for (int i = 0; i < size; i++) {
		uint16_t q = conf[i / RTE_ETH_RETA_GROUP_SIZE].reta[i % RTE_ETH_RETA_GROUP_SIZE];
		if (q >= seen.spread)
			seen.spread = q + 1;
	}
	return 0;
}

static int record_rx_queue(uint16_t port, uint16_t queue, int on)
{
	(void)port;
	queues[queue].stopped = !on;
	return 0;
}

// record_clock is a clock of 375 MHz that began long ago.
static int record_clock(uint16_t port, uint64_t *ticks)
{
	struct timespec t;
	(void)port;
	clock_gettime(CLOCK_MONOTONIC, &t);
	*ticks = 1ull << 50 | ((uint64_t)t.tv_sec * 1000000000 + t.tv_nsec) / 8 * 3;
	return 0;
}

static int record_rate(uint16_t port, uint16_t queue, uint32_t mbps)
{
	(void)port, (void)queue;
	seen.mbps = mbps;
	return 0;
}

static int record_link(uint16_t port, struct rte_eth_link *l)
{
	int r = ps_real.link(port, l);
	if (has & PS_DOWN)
		l->link_status = RTE_ETH_LINK_DOWN;
	return r;
}

static int record_removed(uint16_t port)
{
	(void)port;
	return (has & PS_REMOVED) != 0;
}

static int record_stats(uint16_t port, struct rte_eth_stats *s)
{
	int r = ps_real.stats(port, s);
	s->imissed = 3;
	s->ierrors = 5;
	s->rx_nombuf = 11;
	s->oerrors = 13;
	return r;
}

// split receives a packet into two pools; NULL where one of them is empty.
static struct rte_mbuf *split(struct rte_mbuf *m, uint16_t queue)
{
	struct rte_mbuf *head = rte_pktmbuf_alloc(queues[queue].head), *rest = NULL;
	uint32_t n = RTE_MIN(m->pkt_len, queues[queue].at), more = m->pkt_len - n;
	char to[1 << 14];
	const char *from = rte_pktmbuf_read(m, 0, m->pkt_len, to);
	if (head && more && !(rest = rte_pktmbuf_alloc(queues[queue].rest))) {
		rte_pktmbuf_free(head);
		head = NULL;
	}
	if (head) {
		memcpy(rte_pktmbuf_append(head, n), from, n);
		head->pkt_len = m->pkt_len;
		if (rest) {
			rest->data_off = 0;
			rest->data_len = more;
			memcpy(rte_pktmbuf_mtod(rest, char *), from + n, more);
			head->next = rest;
			head->nb_segs = 2;
		}
	}
	rte_pktmbuf_free(m);
	return head;
}

static uint16_t record_rx(uint16_t port, uint16_t queue, struct rte_mbuf **m, uint16_t n)
{
	if (queues[queue].stopped)
		return 0;
	n = rte_eth_rx_burst(port, queue, m, n);
	uint16_t k = 0;
	for (int i = 0; i < n; i++) {
		struct rte_mbuf *x = m[i];
		if (decapsulates)
			rte_pktmbuf_adj(x, decapsulates);
		if (queues[queue].head && !(x = split(x, queue)))
			continue;
		if (newest) {
			x->ol_flags |= RTE_MBUF_F_RX_FDIR | RTE_MBUF_F_RX_FDIR_ID;
			x->hash.fdir.hi = newest;
		}
		if (has & PS_HASH) {
			x->ol_flags |= RTE_MBUF_F_RX_RSS_HASH;
			x->hash.rss = 0x5eed;
		}
		if (has & PS_TIMES && seen.rx_offloads & RTE_ETH_RX_OFFLOAD_TIMESTAMP) {
			x->ol_flags |= ps_times.rx;
			record_clock(port, RTE_MBUF_DYNFIELD(x, ps_times.offset, uint64_t *));
		}
		m[k++] = x;
	}
	return k;
}

static uint16_t record_tx(uint16_t port, uint16_t queue, struct rte_mbuf **m, uint16_t n)
{
	if (has & PS_SLOW)
		n = (n + 31) / 32;
	for (int i = 0; i < n; i++) {
		if (ps_times.tx && m[i]->ol_flags & ps_times.tx) {
			seen.timed++;
			seen.time = *RTE_MBUF_DYNFIELD(m[i], ps_times.offset, uint64_t *);
		}
		if (m[i]->ol_flags & RTE_MBUF_F_TX_TCP_SEG) {
			seen.cuts++;
			seen.cut = m[i]->tso_segsz;
			seen.headers = m[i]->l2_len + m[i]->l3_len + m[i]->l4_len;
		}
	}
	return ps_real.tx(port, queue, m, n);
}

void ps_record(int action, uint32_t more)
{
	ps_refuse(-1, 0);
	newest = decapsulates = 0;
	without = action;
	memset(&seen, 0, sizeof seen);
	memset(queues, 0, sizeof queues);
	ps_record_has(more);
	ps_ops.flow_validate = record_validate;
	ps_ops.flow_create = record_create;
	ps_ops.flow_destroy = record_destroy;
	ps_ops.flow_isolate = record_isolate;
	ps_ops.flow_query = record_query;
	ps_ops.info = record_info;
	ps_ops.configure = record_configure;
	ps_ops.rx_setup = record_rx_setup;
	ps_ops.tx_setup = record_tx_setup;
	ps_ops.link = record_link;
	ps_ops.removed = record_removed;
	ps_ops.rx = record_rx;
	ps_ops.tx = record_tx;
	if (more & PS_TIMES)
		ps_ops.clock = record_clock;
	if (more & PS_RATES)
		ps_ops.rate = record_rate;
	if (more & PS_QUEUES)
		ps_ops.rx_queue = record_rx_queue;
	if (more & PS_HASH)
		ps_ops.reta = record_reta;
	if (more & PS_LOSSES)
		ps_ops.stats = record_stats;
}

void ps_record_has(uint32_t more) { has = more; }

void ps_record_seen(struct ps_recorded *to)
{
	*to = seen;
	to->flows = flows;
}
