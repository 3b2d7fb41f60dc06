//go:build dpdk

#include "shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <rte_ether.h>
#include <rte_malloc.h>
#include <rte_prefetch.h>

static inline uint32_t number(struct rte_mbuf *m) { return ((struct ps_priv *)rte_mbuf_to_priv(m))->number; }

struct ps_rx *ps_rx_new(uint16_t port, uint16_t queue, struct ps_pool *pool)
{
	struct ps_rx *r = calloc(1, sizeof *r);
	if (!r)
		return NULL;
	r->port = port;
	r->queue = queue;
	r->pool = pool;
	r->give = calloc(PS_BURST, sizeof *r->give);
	r->desc = aligned_alloc(64, PS_DESCS * sizeof *r->desc);
	r->m = calloc(PS_DESCS, sizeof *r->m);
	if (!r->give || !r->desc || !r->m) {
		ps_rx_free(r);
		return NULL;
	}
	return r;
}

void ps_rx_free(struct ps_rx *r)
{
	free(r->give);
	free(r->desc);
	free(r->m);
	free(r);
}

// ps_rx_give puts mbufs into the mempool that the driver takes them from.
void ps_rx_give(struct ps_rx *r, uint32_t give)
{
	for (uint32_t i = 0; i < give; i++)
		r->m[i] = r->pool->mbuf[r->give[i]];
	rte_mempool_put_bulk(r->pool->mp, (void **)r->m, give);
}

// ps_rx_take_back takes up to PS_BURST mbufs out of the mempool, and leaves their numbers in give.
uint32_t ps_rx_take_back(struct ps_rx *r)
{
	uint32_t n = rte_mempool_avail_count(r->pool->mp);
	if (n > PS_BURST)
		n = PS_BURST;
	if (n == 0 || rte_mempool_get_bulk(r->pool->mp, (void **)r->m, n) < 0)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		r->give[i] = number(r->m[i]);
	return n;
}

// put_tag puts a VLAN tag back that the driver has taken off, which no port asks for: net_af_packet does, as the kernel does, and cannot put it back
// into external buffers (rte_vlan_insert). Which of the types of tags it was the mbuf does not say.
static void put_tag(struct rte_mbuf *m)
{
	char *from = rte_pktmbuf_mtod(m, char *), *to;
	if (m->data_len < 2 * RTE_ETHER_ADDR_LEN || !(to = rte_pktmbuf_prepend(m, sizeof(struct rte_vlan_hdr))))
		return;
	memmove(to, from, 2 * RTE_ETHER_ADDR_LEN);
	uint16_t tag[] = {rte_cpu_to_be_16(RTE_ETHER_TYPE_VLAN), rte_cpu_to_be_16(m->vlan_tci)};
	memcpy(to + 2 * RTE_ETHER_ADDR_LEN, tag, sizeof tag);
	m->ol_flags &= ~RTE_MBUF_F_RX_VLAN_STRIPPED;
}

// ps_rx_burst gives mbufs to the driver, takes packets from it, and writes down their segments. It returns the number of packets, and in the upper
// half that of segments.
uint64_t ps_rx_burst(struct ps_rx *r, uint32_t give, uint32_t most)
{
	if (give)
		ps_rx_give(r, give);
	if (most > PS_BURST)
		most = PS_BURST;
	uint32_t got = ps_ops.rx(r->port, r->queue, r->m, most), packets = 0, n = 0;
	struct rte_mempool *mp = r->pool->mp;
	for (uint32_t i = 0; i < got; i++) {
		struct rte_mbuf *m = r->m[i];
		if (i + 4 < got)
			rte_prefetch0(r->m[i + 4]);
		struct ps_desc *d = &r->desc[n];
		uint32_t segs = m->nb_segs;
		if (segs > PS_SEGS || n + segs > PS_DESCS - (got - i - 1)) { // the others need one each
			r->too_long++;
			rte_pktmbuf_free(m);
			continue;
		}
		if (unlikely(m->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED))
			put_tag(m);
		d->flags = m->ol_flags;
		d->pkt_len = m->pkt_len;
		d->hash = m->hash.rss;
		d->mark = m->hash.fdir.hi;
		d->time = m->ol_flags & ps_times.rx ? *RTE_MBUF_DYNFIELD(m, ps_times.offset, uint64_t *) : 0;
		d->segs = segs;
		for (;;) {
			struct rte_mbuf *next = m->next;
			d->addr = (uint64_t)(uintptr_t)m->buf_addr + m->data_off;
			d->off = m->data_off;
			d->len = m->data_len;
			d->mbuf = (uint64_t)(uintptr_t)m;
			d->foreign = m->pool != mp;
			if (!d->foreign) {
				d->slot = number(m);
				m->next = NULL; // it is idle from here on, as it was made
				m->nb_segs = 1;
			}
			d++;
			if (!next)
				break;
			m = next;
			d->segs = 0;
		}
		n += segs;
		packets++;
	}
	return (uint64_t)n << 32 | packets;
}

// ps_free_foreign frees mbufs, each by itself: what was a chain keeps its links.
void ps_free_foreign(uint64_t *m, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		rte_pktmbuf_free_seg((struct rte_mbuf *)(uintptr_t)m[i]);
}

struct ps_tx *ps_tx_new(uint16_t port, uint16_t queue, uint32_t depth, int others, const char *name, int *err)
{
	struct ps_tx *t = calloc(1, sizeof *t);
	if (!t) {
		*err = ENOMEM;
		return NULL;
	}
	t->port = port;
	t->queue = queue;
	t->physical = rte_eal_iova_mode() == RTE_IOVA_PA;
	t->one = calloc(PS_BURST, sizeof *t->one);
	t->seg = aligned_alloc(64, PS_DESCS * sizeof *t->seg);
	t->m = calloc(PS_DESCS, sizeof *t->m);
	t->packet = calloc(PS_DESCS, sizeof *t->packet);
	t->done = calloc(PS_DESCS, sizeof *t->done);
	*err = ENOMEM;
	if (t->seg && t->one && t->m && t->packet && t->done)
		t->pool = ps_header_pool(name, depth, others, rte_eth_dev_socket_id(port), err);
	if (!t->pool) {
		ps_tx_free(t);
		return NULL;
	}
	return t;
}

void ps_tx_free(struct ps_tx *t)
{
	if (t->pool)
		ps_pool_close(t->pool);
	free(t->seg);
	free(t->one);
	free(t->m);
	free(t->packet);
	free(t->done);
	free(t);
}

// point points a header at bytes: one segment, for which the device does nothing else.
static inline void point(struct ps_tx *t, struct rte_mbuf *m, uint64_t addr, uint16_t len)
{
	m->buf_addr = (void *)(uintptr_t)addr;
	rte_mbuf_iova_set(m, t->physical ? rte_malloc_virt2iova(m->buf_addr) : addr);
	m->buf_len = len;
	m->data_off = 0;
	m->data_len = len;
	m->next = NULL;
	m->nb_segs = 1;
	m->ol_flags = RTE_MBUF_F_EXTERNAL;
}

// ps_tx_run is ps_tx_burst for the first packets in one. It returns how many the driver took.
uint32_t ps_tx_run(struct ps_tx *t, uint32_t packets)
{
	for (uint32_t i = 0; i < packets; i++) {
		struct ps_one *s = &t->one[i];
		struct rte_mbuf *m = t->packet[i] = t->pool->mbuf[s->index];
		if (i + 2 < packets)
			rte_prefetch0(t->pool->mbuf[t->one[i + 2].index]);
		point(t, m, s->addr, s->len);
		m->pkt_len = s->len;
		m->packet_type = 0;
	}
	uint32_t n = ps_ops.tx(t->port, t->queue, t->packet, packets);
	t->out += n;
	t->back = ps_tx_reap(t, 0);
	return n;
}

// ps_tx_burst sends packets, and returns how many segments of whole packets the driver took. What the driver has freed by then is in done, and
// back says how many.
uint32_t ps_tx_burst(struct ps_tx *t, uint32_t segs)
{
	uint32_t packets = 0, taken = 0;
	int prepare = 0;
	struct rte_mbuf *last = NULL;
	t->back = 0;
	for (uint32_t i = 0; i < segs; i++) {
		struct ps_seg *s = &t->seg[i];
		struct rte_mbuf *m = t->pool->mbuf[s->index];
		point(t, m, s->addr, s->len);
		if (s->segs) {
			t->packet[packets++] = m;
			m->nb_segs = s->segs;
			m->pkt_len = s->pkt_len;
			m->ol_flags |= s->flags;
			m->packet_type = 0;
			if (s->flags) {
				prepare = 1;
				m->tx_offload = 0;
				m->l2_len = s->l2;
				m->l3_len = s->l3;
				m->l4_len = s->l4;
				m->tso_segsz = s->cut;
			}
			if (s->time) {
				m->ol_flags |= ps_times.tx;
				*RTE_MBUF_DYNFIELD(m, ps_times.offset, uint64_t *) = s->time;
			}
		} else
			last->next = m;
		last = m;
	}
	uint32_t ready = packets;
	if (prepare)
		ready = ps_ops.prepare(t->port, t->queue, t->packet, packets);
	if (ready == 0 && packets > 0) { // nothing will make the driver take the first one
		t->refused++;
		return 0;
	}
	uint32_t n = ps_ops.tx(t->port, t->queue, t->packet, ready);
	for (uint32_t i = 0; i < segs && n; i += t->seg[i].segs, n--)
		taken += t->seg[i].segs;
	t->out += taken;
	t->back = ps_tx_reap(t, 0);
	return taken;
}

// ps_tx_reap leaves the numbers of headers that came back in done, and returns how many. The driver is asked for them if it is running.
uint32_t ps_tx_reap(struct ps_tx *t, int running)
{
	if (!t->out)
		return 0;
	uint32_t n = rte_mempool_avail_count(t->pool->mp);
	if (!n && running) { // a driver may free what it has sent only when it is asked to, or when it is called to send
		if (ps_ops.cleanup(t->port, t->queue, 0) == -ENOTSUP)
			ps_ops.tx(t->port, t->queue, t->packet, 0);
		n = rte_mempool_avail_count(t->pool->mp);
	}
	if (n > PS_DESCS)
		n = PS_DESCS;
	if (!n || rte_mempool_get_bulk(t->pool->mp, (void **)t->m, n) < 0)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		t->done[i] = number(t->m[i]);
	t->out -= n;
	return n;
}
