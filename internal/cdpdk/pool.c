//go:build dpdk

#include "shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <rte_malloc.h>

static inline struct ps_priv *priv(struct rte_mbuf *m) { return rte_mbuf_to_priv(m); }

// ps_init is what mbufs with external buffers are made of.
struct ps_init {
	struct ps_pool *p;
	char *base;
	uint64_t stride;
	uint32_t room;
	int err;
};

static void init_external(struct rte_mempool *mp, void *arg, void *obj, unsigned i)
{
	struct ps_init *x = arg;
	struct rte_mbuf *m = obj;
	rte_pktmbuf_init(mp, NULL, obj, i);
	m->buf_addr = x->base ? x->base + i * x->stride : NULL;
	rte_iova_t iova = (rte_iova_t)(uintptr_t)m->buf_addr;
	if (x->base && rte_eal_iova_mode() == RTE_IOVA_PA) {
		iova = rte_mem_virt2iova(m->buf_addr);
		// The last byte lies where it would with contiguous pages, or the device would write elsewhere.
		if (iova == RTE_BAD_IOVA || rte_mem_virt2iova((char *)m->buf_addr + x->room - 1) != iova + x->room - 1)
			x->err = EFAULT;
	}
	rte_mbuf_iova_set(m, iova);
	m->buf_len = x->room;
	m->ol_flags = RTE_MBUF_F_EXTERNAL;
	m->shinfo = &priv(m)->shared;
	rte_mbuf_ext_refcnt_set(m->shinfo, 1);
	priv(m)->number = i;
	x->p->mbuf[i] = m;
}

// last_reference puts an mbuf back to whose memory drivers had made others refer (rte_pktmbuf_attach), as rte_pktmbuf_pool_create_extbuf does.
static void last_reference(void *addr, void *opaque)
{
	struct rte_mbuf *m = opaque;
	(void)addr;
	rte_mbuf_ext_refcnt_set(m->shinfo, 1);
	m->ol_flags = RTE_MBUF_F_EXTERNAL;
	m->next = NULL;
	m->nb_segs = 1;
	rte_mbuf_raw_free(m);
}

static void init_own(struct rte_mempool *mp, void *arg, void *obj, unsigned i)
{
	struct ps_init *x = arg;
	struct rte_mbuf *m = obj;
	if (mp->flags & RTE_MEMPOOL_F_NO_IOVA_CONTIG) // such a pool does not know its IOVA, which is the virtual address
		rte_mbuf_iova_set(m, (uintptr_t)m->buf_addr);
	priv(m)->number = i;
	x->p->mbuf[i] = m;
}

static struct ps_pool *new_pool(uint32_t n, int *err)
{
	struct ps_pool *p = calloc(1, sizeof *p);
	if (p && (p->mbuf = calloc(n, sizeof *p->mbuf))) {
		p->n = n;
		return p;
	}
	free(p);
	*err = ENOMEM;
	return NULL;
}

// external makes a pool of mbufs without data of their own, all of them outside.
static struct ps_pool *external(const char *name, char *base, uint32_t n, uint64_t stride, uint32_t room, int socket, unsigned flags, const char *ops, int *err)
{
	struct rte_pktmbuf_pool_private data;
	struct ps_pool *p = new_pool(n, err);
	if (!p)
		return NULL;
	struct ps_init x = {p, base, stride, room, 0};
	memset(&data, 0, sizeof data);
	data.mbuf_data_room_size = room;
	data.mbuf_priv_size = RTE_ALIGN(sizeof(struct ps_priv), RTE_MBUF_PRIV_ALIGN);
	data.flags = RTE_PKTMBUF_POOL_F_PINNED_EXT_BUF;
	rte_errno = 0;
	p->mp = rte_mempool_create_empty(name, n, sizeof(struct rte_mbuf) + data.mbuf_priv_size + sizeof(struct rte_mbuf_ext_shared_info), 0, sizeof data, socket, flags);
	if (!p->mp) {
		*err = ps_reason();
		goto fail;
	}
	int r = rte_mempool_set_ops_byname(p->mp, ops, NULL);
	if (r < 0) {
		*err = -r;
		goto fail;
	}
	rte_pktmbuf_pool_init(p->mp, &data);
	if ((r = rte_mempool_populate_default(p->mp)) < 0) {
		*err = -r;
		goto fail;
	}
	rte_mempool_obj_iter(p->mp, init_external, &x);
	for (uint32_t i = 0; i < n; i++) {
		p->mbuf[i]->shinfo->free_cb = last_reference;
		p->mbuf[i]->shinfo->fcb_opaque = p->mbuf[i];
	}
	if (x.err) {
		*err = x.err;
		goto fail;
	}
	void **all = malloc(n * sizeof *all);
	if (!all || rte_mempool_get_bulk(p->mp, all, n) < 0) {
		free(all);
		*err = ENOMEM;
		goto fail;
	}
	free(all);
	return p;
fail:
	ps_pool_close(p);
	return NULL;
}

// ps_slot_pool_at makes a pool of one mbuf for each slot of memory. Only the owner of one receive queue uses it.
struct ps_pool *ps_slot_pool_at(const char *name, uintptr_t base, uint32_t n, uint64_t stride, uint32_t room, int socket, int *err)
{
	return external(name, (char *)base, n, stride, room, socket, RTE_MEMPOOL_F_SP_PUT | RTE_MEMPOOL_F_SC_GET, "ring_sp_sc", err);
}

// ps_header_pool makes a pool of mbufs that are pointed at what is to be sent. The queue alone takes them out. The driver puts them back while the
// queue calls it, or with others another port that got them.
struct ps_pool *ps_header_pool(const char *name, uint32_t n, int others, int socket, int *err)
{
	unsigned flags = RTE_MEMPOOL_F_SC_GET | (others ? 0 : RTE_MEMPOOL_F_SP_PUT);
	return external(name, NULL, n, 0, 0, socket, flags, others ? "ring_mp_sc" : "ring_sp_sc", err);
}

// ps_own_pool makes a pool of mbufs with data of their own, all of them inside, in one piece of memory.
struct ps_pool *ps_own_pool(const char *name, uint32_t n, uint32_t room, int socket, int *err)
{
	struct ps_pool *p = new_pool(n, err);
	if (!p)
		return NULL;
	struct ps_init x = {.p = p};
	struct rte_pktmbuf_pool_private data;
	memset(&data, 0, sizeof data);
	data.mbuf_data_room_size = room;
	data.mbuf_priv_size = RTE_ALIGN(sizeof(struct ps_priv), RTE_MBUF_PRIV_ALIGN);
	// With virtual addresses mbufs may cross pages. Without the flag there are gaps between them where pages are small, and net_af_xdp counts on none.
	unsigned flags = rte_eal_iova_mode() == RTE_IOVA_VA ? RTE_MEMPOOL_F_NO_IOVA_CONTIG : 0;
	rte_errno = 0;
	p->mp = rte_mempool_create_empty(name, n, sizeof(struct rte_mbuf) + data.mbuf_priv_size + room, 0, sizeof data, socket, flags);
	if (!p->mp) {
		*err = ps_reason();
		ps_pool_close(p);
		return NULL;
	}
	// The mbuf that came back last is the next: a ring would go through all of the memory, most of which no cache holds.
	int r = rte_mempool_set_ops_byname(p->mp, "stack", NULL);
	if (r < 0)
		r = rte_mempool_set_ops_byname(p->mp, "ring_mp_mc", NULL);
	if (r == 0) {
		rte_pktmbuf_pool_init(p->mp, &data);
		r = rte_mempool_populate_default(p->mp);
	}
	if (r < 0) {
		*err = -r;
		ps_pool_close(p);
		return NULL;
	}
	rte_mempool_obj_iter(p->mp, rte_pktmbuf_init, NULL);
	if (p->mp->nb_mem_chunks != 1) { // packets are lent as parts of one region
		*err = ENOMEM;
		ps_pool_close(p);
		return NULL;
	}
	struct rte_mempool_memhdr *h = STAILQ_FIRST(&p->mp->mem_list);
	p->memory = h->addr;
	p->length = h->len;
	rte_mempool_obj_iter(p->mp, init_own, &x);
	return p;
}

uint32_t ps_pool_free_count(struct ps_pool *p) { return rte_mempool_avail_count(p->mp); }

void ps_pool_close(struct ps_pool *p)
{
	if (p->mp)
		rte_mempool_free(p->mp);
	free(p->mbuf);
	free(p);
}

void *ps_alloc(uint64_t n) { return rte_zmalloc("penstock", n, 4096); }
void ps_dealloc(void *p) { rte_free(p); }
