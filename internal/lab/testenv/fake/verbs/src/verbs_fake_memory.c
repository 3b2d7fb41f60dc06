/* Protection domains, memory regions, memory windows and their keys.
 *
 * A key is an index of a slot in its upper 24 bits and a tag in the lower 8. Slots are given out in turn, so that an old key
 * meets nothing for a long time. The lkey and the rkey of a region differ, as they may on hardware: a program that mixes them up
 * is found. */
#include "verbs_fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct slot {
	struct fake_mr *mr;
	struct fake_mw *mw;
};

static struct slot *slots;
static uint32_t slots_len, slots_next = 1;
static uint64_t locked; /* bytes, of all regions */

static uint32_t slot_take(struct fake_mr *mr, struct fake_mw *mw)
{
	for (uint32_t tries = 0; tries < MAX_SLOTS; tries++) {
		uint32_t i = slots_next;
		slots_next = slots_next + 1 < MAX_SLOTS ? slots_next + 1 : 1;
		if (i >= slots_len) {
			uint32_t len = slots_len ? slots_len * 2 : 256;
			struct slot *s = realloc(slots, len * sizeof(*s));
			if (!s)
				return 0;
			memset(s + slots_len, 0, (len - slots_len) * sizeof(*s));
			slots = s;
			slots_len = len;
		}
		if (!slots[i].mr && !slots[i].mw) {
			slots[i] = (struct slot){mr, mw};
			return i;
		}
	}
	return 0;
}

static struct slot *slot_of(uint32_t key) { return key >> 8 < slots_len ? &slots[key >> 8] : NULL; }

__attribute__((destructor)) static void finish(void)
{
	free(slots);
	slots = NULL;
	slots_len = 0;
}

/* ---- protection domains */

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	struct fake_context *ctx = CTX(c);
	struct fake_pd *pd = NULL;
	lock();
	int err = fake_call(CALL_ibv_alloc_pd);
	if (!err && !ALIVE(ctx, K_CONTEXT, "ibv_alloc_pd"))
		err = EINVAL;
	if (!err && !(pd = NEW(struct fake_pd, K_PD, ctx)))
		err = ENOMEM;
	if (pd) {
		pd->ibv.context = c;
		pd->ibv.handle = (uint32_t)pd->o.serial;
	}
	unlock();
	if (err)
		errno = err;
	return pd ? &pd->ibv : NULL;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *ibv)
{
	struct fake_pd *pd = (struct fake_pd *)ibv;
	lock();
	int err = fake_call(CALL_ibv_dealloc_pd);
	if (!err && !ALIVE(pd, K_PD, "ibv_dealloc_pd"))
		err = EINVAL;
	if (!err && pd->mrs + pd->mws + pd->qps + pd->srqs + pd->ahs > 0)
		err = EBUSY;
	if (!err)
		fake_bury(&pd->o);
	unlock();
	return err;
}

/* ---- memory regions */

/* pin touches the pages as the kernel does when it pins them, and fails as it does where they are not there or not writable. */
static int pin(const void *addr, size_t len, bool write)
{
#if defined(MADV_POPULATE_READ) && defined(MADV_POPULATE_WRITE)
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t from = (uintptr_t)addr & ~(page - 1), to = ((uintptr_t)addr + len + page - 1) & ~(page - 1);
	int how = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
	static int known; /* 1: the kernel has it, 2: not */
	if (!known) {
		void *p = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		known = p != MAP_FAILED && madvise(p, page, MADV_POPULATE_WRITE) == 0 ? 1 : 2;
		if (p != MAP_FAILED)
			munmap(p, page);
	}
	if (known == 1 && len > 0 && madvise((void *)from, to - from, how) != 0)
		return EFAULT;
#else
	(void)addr, (void)len, (void)write;
#endif
	return 0;
}

enum {
	ACCESS_REMOTE = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	ACCESS_WRITES = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
	ACCESS_KNOWN = IBV_ACCESS_LOCAL_WRITE | ACCESS_REMOTE | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB,
};

static int check_access(unsigned access)
{
	if ((access & IBV_ACCESS_ON_DEMAND) && !config.odp)
		return EINVAL; /* the kernel's answer where the device has no on-demand paging */
	if (access & ~(unsigned)(ACCESS_KNOWN | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_OPTIONAL_RANGE))
		return EINVAL;
	/* The kernel: whoever may write from afar must be able to write here. */
	if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(access & IBV_ACCESS_LOCAL_WRITE))
		return EINVAL;
	return 0;
}

/* peer_memory finds who answers for a device's addresses, as nvidia-peermem does. */
static const struct peer *peer_memory(const void *addr, size_t len)
{
	for (int i = 0; i < MAX_PEERS; i++) {
		const struct peer *p = &config.peers[i];
		uint64_t at = (uintptr_t)addr - p->addr;
		if ((uintptr_t)addr >= p->addr && at <= p->len && len <= p->len - at)
			return p;
	}
	return NULL;
}

static struct ibv_mr *reg(enum call call, struct ibv_pd *ibv, void *addr, size_t len, uint64_t iova, int access, int fd, uint64_t offset)
{
	struct fake_pd *pd = (struct fake_pd *)ibv;
	struct fake_mr *mr = NULL;
	char *host = addr;
	void *map = NULL;
	size_t map_len = 0;
	lock();
	int err = fake_call(call);
	if (!err && !ALIVE(pd, K_PD, "ibv_reg_mr"))
		err = EINVAL;
	if (!err)
		err = check_access((unsigned)access);
	if (!err && (len > config.attr.max_mr_size || (uintptr_t)addr + len < (uintptr_t)addr || iova + len < iova))
		err = EINVAL;
	/* Pages on demand are neither pinned nor counted: they are looked for when a request touches them. */
	size_t counted = (access & IBV_ACCESS_ON_DEMAND) ? 0 : len;
	if (!err && config.memlock - locked < counted)
		err = ENOMEM;
	const struct peer *peer = fd < 0 && len ? peer_memory(addr, len) : NULL;
	if (peer) {
		fd = peer->fd;
		offset = (uintptr_t)addr - peer->addr;
	}
	if (!err && fd >= 0) {
		uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), from = offset & ~(page - 1);
		int prot = (access & ACCESS_WRITES) ? PROT_READ | PROT_WRITE : PROT_READ;
		/* A buffer that stands for the middle of something begins at its descriptor's position. */
		off_t at = peer ? 0 : lseek(fd, 0, SEEK_CUR), end = at >= 0 ? lseek(fd, 0, SEEK_END) : -1;
		if (at < 0)
			at = 0;
		else if (!peer)
			lseek(fd, at, SEEK_SET);
		if (!peer && (config.absent & ABSENT_DMABUF))
			err = EOPNOTSUPP;
		else if (!peer && ((iova ^ offset) & (page - 1)))
			err = EINVAL; /* the kernel: both must lie at one place in their pages */
		else if (at % (off_t)page || (end >= 0 && (uint64_t)(end - at) < offset + len))
			err = EINVAL;
		else {
			map_len = len + (offset - from);
			map = mmap(NULL, map_len ? map_len : 1, prot, MAP_SHARED, fd, at + (off_t)from);
			if (map == MAP_FAILED) {
				err = errno == EBADF ? EBADF : EINVAL;
				map = NULL;
			} else
				host = (char *)map + (offset - from);
		}
	} else if (!err && counted)
		err = pin(addr, len, (access & ACCESS_WRITES) != 0);
	uint32_t slot = 0;
	if (!err && !(mr = NEW(struct fake_mr, K_MR, pd->o.ctx)))
		err = ENOMEM;
	if (mr && !(slot = slot_take(mr, NULL))) {
		fake_bury(&mr->o);
		mr = NULL;
		err = ENOMEM;
	}
	if (mr) {
		uint32_t tag = (uint32_t)mr->o.serial * 7u & 0x7f;
		mr->ibv.context = ibv->context;
		mr->ibv.pd = ibv;
		mr->ibv.addr = addr;
		mr->ibv.length = len;
		mr->ibv.handle = slot;
		mr->ibv.lkey = slot << 8 | tag;
		mr->ibv.rkey = slot << 8 | tag | 0x80;
		mr->iova = (access & IBV_ACCESS_ZERO_BASED) && (fd < 0 || peer) ? 0 : iova;
		mr->host = host;
		mr->access = (unsigned)access;
		mr->locked = counted;
		mr->map = map;
		mr->map_len = map_len;
		locked += counted;
		pd->mrs++;
	} else if (map)
		munmap(map, map_len ? map_len : 1);
	unlock();
	if (err)
		errno = err;
	return mr ? &mr->ibv : NULL;
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	return reg(CALL_ibv_reg_mr, pd, addr, len, (uintptr_t)addr, access, -1, 0);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, int access)
{
	return reg(CALL_ibv_reg_mr, pd, addr, len, iova, access, -1, 0);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access)
{
	return reg(CALL_ibv_reg_mr, pd, addr, len, iova, (int)access, -1, 0);
}

EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd, int access)
{
	if (fd < 0) { /* how programs find out whether there are dma-bufs at all */
		lock();
		int err = fake_call(CALL_ibv_reg_dmabuf_mr);
		if (!err)
			err = config.absent & ABSENT_DMABUF ? EOPNOTSUPP : EBADF;
		unlock();
		errno = err;
		return NULL;
	}
	return reg(CALL_ibv_reg_dmabuf_mr, pd, (void *)(uintptr_t)offset, len, iova, access, fd, offset);
}

EXPORT int ibv_rereg_mr(struct ibv_mr *ibv, int flags, struct ibv_pd *pd, void *addr, size_t len, int access)
{
	struct fake_mr *mr = (struct fake_mr *)ibv;
	struct fake_pd *to = (struct fake_pd *)pd;
	lock();
	int err = fake_call(CALL_ibv_rereg_mr);
	if (!err && (!ALIVE(mr, K_MR, "ibv_rereg_mr") || !flags || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) || mr->map))
		err = EINVAL;
	if (!err && (flags & IBV_REREG_MR_CHANGE_PD) && !ALIVE(to, K_PD, "ibv_rereg_mr"))
		err = EINVAL;
	if (!err && mr->windows)
		err = EBUSY;
	if (!err && ((mr->access | (unsigned)access) & IBV_ACCESS_ON_DEMAND))
		err = EOPNOTSUPP; /* neither into it nor out of it */
	unsigned now = (flags & IBV_REREG_MR_CHANGE_ACCESS) ? (unsigned)access : (err ? 0 : mr->access);
	if (!err)
		err = check_access(now);
	if (!err && (flags & IBV_REREG_MR_CHANGE_TRANSLATION) && config.memlock - (locked - mr->locked) < len)
		err = ENOMEM;
	if (!err && (flags & IBV_REREG_MR_CHANGE_TRANSLATION))
		err = pin(addr, len, (now & ACCESS_WRITES) != 0);
	if (!err) {
		mr->access = now;
		if (flags & IBV_REREG_MR_CHANGE_PD) {
			((struct fake_pd *)mr->ibv.pd)->mrs--;
			to->mrs++;
			mr->ibv.pd = pd;
		}
		if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
			locked += len - mr->locked;
			mr->ibv.addr = addr;
			mr->ibv.length = mr->locked = len;
			mr->host = addr;
			mr->iova = (uintptr_t)addr;
		}
	}
	unlock();
	if (err)
		errno = err;
	return err ? IBV_REREG_MR_ERR_INPUT : 0;
}

EXPORT int ibv_dereg_mr(struct ibv_mr *ibv)
{
	struct fake_mr *mr = (struct fake_mr *)ibv;
	lock();
	int err = fake_call(CALL_ibv_dereg_mr);
	if (!err && !ALIVE(mr, K_MR, "ibv_dereg_mr"))
		err = EINVAL;
	if (!err && mr->windows) {
		fake_violation("ibv_dereg_mr: region #%llu has %d windows bound", (unsigned long long)mr->o.serial, mr->windows);
		err = EINVAL;
	}
	if (!err) {
		slots[mr->ibv.lkey >> 8].mr = NULL;
		locked -= mr->locked;
		((struct fake_pd *)mr->ibv.pd)->mrs--;
		if (mr->map)
			munmap(mr->map, mr->map_len ? mr->map_len : 1);
		fake_bury(&mr->o);
	}
	unlock();
	return err;
}

/* fake_local resolves an element of a scatter or gather list. */
enum ibv_wc_status fake_local(struct fake_pd *pd, const struct ibv_sge *s, bool write, char **host)
{
	*host = NULL;
	if (s->length == 0)
		return IBV_WC_SUCCESS;
	struct slot *sl = slot_of(s->lkey);
	struct fake_mr *mr = sl ? sl->mr : NULL;
	if (!mr || mr->ibv.lkey != s->lkey || mr->ibv.pd != &pd->ibv || (write && !(mr->access & IBV_ACCESS_LOCAL_WRITE)) ||
	    s->addr < mr->iova || s->length > mr->ibv.length || s->addr - mr->iova > mr->ibv.length - s->length)
		return IBV_WC_LOC_PROT_ERR;
	*host = mr->host + (s->addr - mr->iova);
	return IBV_WC_SUCCESS;
}

/* fake_remote resolves the range that a request of the peer names, with the rights it needs, seen from the responder. */
enum ibv_wc_status fake_remote(struct fake_qp *resp, struct ibv_pd *pd, uint32_t rkey, uint64_t addr, uint64_t len, unsigned need,
			       char **host)
{
	*host = NULL;
	if (len == 0)
		return IBV_WC_SUCCESS; /* nothing is touched, and no key is looked at */
	struct slot *sl = slot_of(rkey);
	struct fake_mr *mr = NULL;
	uint64_t base, length;
	if (sl && sl->mr && sl->mr->ibv.rkey == rkey && sl->mr->ibv.pd == pd && (sl->mr->access & need) == need) {
		mr = sl->mr;
		base = mr->iova;
		length = mr->ibv.length;
	} else if (sl && sl->mw && sl->mw->mr && sl->mw->key == rkey && sl->mw->ibv.pd == pd && (sl->mw->access & need) == need &&
		   (sl->mw->ibv.type == IBV_MW_TYPE_1 || sl->mw->qp == resp)) {
		mr = sl->mw->mr;
		base = sl->mw->addr;
		length = sl->mw->length;
	} else
		return IBV_WC_REM_ACCESS_ERR;
	uint64_t start = base; /* of the window or region, as remote addresses count */
	if (sl->mw && (sl->mw->access & IBV_ACCESS_ZERO_BASED))
		start = 0;
	if (addr < start || len > length || addr - start > length - len)
		return IBV_WC_REM_ACCESS_ERR;
	*host = mr->host + (base - mr->iova) + (addr - start);
	return IBV_WC_SUCCESS;
}

/* ---- memory windows */

struct ibv_mw *fake_alloc_mw(struct ibv_pd *ibv, enum ibv_mw_type type)
{
	struct fake_pd *pd = (struct fake_pd *)ibv;
	struct fake_mw *mw = NULL;
	uint32_t slot = 0;
	lock();
	int err = fake_call(CALL_ibv_alloc_mw);
	if (!err && !ALIVE(pd, K_PD, "ibv_alloc_mw"))
		err = EINVAL;
	if (!err && (config.absent & ABSENT_MW))
		err = EOPNOTSUPP;
	if (!err && type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2)
		err = EINVAL;
	if (!err && !(mw = NEW(struct fake_mw, K_MW, pd->o.ctx)))
		err = ENOMEM;
	if (mw && !(slot = slot_take(NULL, mw))) {
		fake_bury(&mw->o);
		mw = NULL;
		err = ENOMEM;
	}
	if (mw) {
		mw->ibv.context = ibv->context;
		mw->ibv.pd = ibv;
		mw->ibv.type = type;
		mw->ibv.handle = slot;
		mw->ibv.rkey = mw->key = slot << 8 | ((uint32_t)mw->o.serial & 0xff);
		pd->mws++;
	}
	unlock();
	if (err)
		errno = err;
	return mw ? &mw->ibv : NULL;
}

static void unbind(struct fake_mw *mw)
{
	if (mw->mr)
		mw->mr->windows--;
	mw->mr = NULL;
	mw->qp = NULL;
	mw->access = 0;
}

int fake_dealloc_mw(struct ibv_mw *ibv)
{
	struct fake_mw *mw = (struct fake_mw *)ibv;
	lock();
	int err = fake_call(CALL_ibv_dealloc_mw);
	if (!err && !ALIVE(mw, K_MW, "ibv_dealloc_mw"))
		err = EINVAL;
	if (!err) {
		unbind(mw);
		slots[mw->key >> 8].mw = NULL;
		((struct fake_pd *)mw->ibv.pd)->mws--;
		fake_bury(&mw->o);
	}
	unlock();
	return err;
}

/* fake_bind executes a bind request, with the checks of the InfiniBand specification 10.6.7.2. */
enum ibv_wc_status fake_bind(struct fake_qp *qp, struct fake_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	struct fake_mr *mr = (struct fake_mr *)info->mr;
	unsigned access = info->mw_access_flags;
	if (!ALIVE(mw, K_MW, "bind of a window") || mw->ibv.pd != qp->ibv.pd)
		return IBV_WC_MW_BIND_ERR;
	if (mw->ibv.type == IBV_MW_TYPE_2) {
		/* A window of type 2 must be free, and the new key may differ from the old in the tag only. */
		if (mw->mr || (mw->key ^ rkey) >> 8 || !info->length)
			return IBV_WC_MW_BIND_ERR;
	} else if (!info->length) {
		unbind(mw);
		mw->key = rkey;
		return IBV_WC_SUCCESS;
	}
	if (!ALIVE(mr, K_MR, "bind of a window") || mr->ibv.pd != mw->ibv.pd || !(mr->access & IBV_ACCESS_MW_BIND) ||
	    (mr->access & IBV_ACCESS_ZERO_BASED))
		return IBV_WC_MW_BIND_ERR;
	if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(mr->access & IBV_ACCESS_LOCAL_WRITE))
		return IBV_WC_MW_BIND_ERR;
	if (info->addr < mr->iova || info->length > mr->ibv.length || info->addr - mr->iova > mr->ibv.length - info->length)
		return IBV_WC_MW_BIND_ERR;
	unbind(mw);
	mw->mr = mr;
	mr->windows++;
	mw->addr = info->addr;
	mw->length = info->length;
	mw->access = access;
	mw->key = rkey;
	mw->qp = mw->ibv.type == IBV_MW_TYPE_2 ? qp : NULL;
	return IBV_WC_SUCCESS;
}

/* fake_invalidate makes the window with this key free again: for a local request or one that the peer sends. */
enum ibv_wc_status fake_invalidate(struct fake_qp *qp, uint32_t rkey)
{
	struct slot *sl = slot_of(rkey);
	struct fake_mw *mw = sl ? sl->mw : NULL;
	if (!mw || mw->key != rkey || mw->ibv.type != IBV_MW_TYPE_2 || !mw->mr || mw->qp != qp)
		return IBV_WC_LOC_QP_OP_ERR;
	unbind(mw);
	return IBV_WC_SUCCESS;
}

/* fake_windows_of frees the windows that were bound to a queue pair which ends. */
void fake_windows_of(struct fake_qp *qp)
{
	for (struct obj *o = fake_first(K_MW); o; o = o->next) {
		struct fake_mw *mw = container(o, struct fake_mw, o);
		if (mw->qp == qp)
			unbind(mw);
	}
}

/* fake_bind_mw is ibv_bind_mw: type 1, as a request in the send queue; the key is new at once. */
int fake_bind_mw(struct ibv_qp *ibv, struct ibv_mw *ibv_mw, struct ibv_mw_bind *b)
{
	struct fake_qp *qp = (struct fake_qp *)ibv;
	struct fake_mw *mw = (struct fake_mw *)ibv_mw;
	lock();
	int err = fake_call(CALL_ibv_bind_mw);
	if (!err && (!ALIVE(qp, K_QP, "ibv_bind_mw") || !ALIVE(mw, K_MW, "ibv_bind_mw")))
		err = EINVAL;
	if (!err && (b->bind_info.mw_access_flags & IBV_ACCESS_ZERO_BASED))
		err = EINVAL; /* windows of type 1 count from the region's addresses */
	if (!err) {
		struct ibv_send_wr *bad, wr = {
			.wr_id = b->wr_id, .opcode = IBV_WR_BIND_MW, .send_flags = b->send_flags,
			.bind_mw = {.mw = ibv_mw, .rkey = ibv_inc_rkey(ibv_mw->rkey), .bind_info = b->bind_info},
		};
		err = fake_post_locked(qp, &wr, &bad, true);
		if (!err)
			ibv_mw->rkey = wr.bind_mw.rkey;
	}
	unlock();
	return err;
}
