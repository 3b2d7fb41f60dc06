/* The functions of penstock.h, each by one request and one answer. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "client.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A request whose first argument is a handle. */
static int32_t of(request *q, uint32_t op, penstock_handle h, penstock_error *out)
{
	begin(q, op);
	put_u64(q, h);
	return known(h, out);
}

static int32_t unreadable(penstock_error *out) { return fail(out, PENSTOCK_OTHER, "the answer of the agent cannot be read: is it one that was built with this library?"); }

/* A call that makes something: its handle, and the answer, which the caller ends; 0 on an error. */
static penstock_handle made(request *q, answer *a, penstock_error *out)
{
	if (ask(q, a, out) != PENSTOCK_OK)
		return 0;
	seen(a->result);
	return a->result;
}

static penstock_handle make(request *q, penstock_error *out)
{
	answer a;
	penstock_handle h = made(q, &a, out);
	if (h)
		end(&a);
	return h;
}

static int32_t call(request *q, penstock_error *out)
{
	answer a;
	int32_t r = ask(q, &a, out);
	if (r == PENSTOCK_OK)
		end(&a);
	return r;
}

/* A call whose result is a number. */
static int64_t number(request *q, penstock_error *out)
{
	answer a;
	int32_t r = ask(q, &a, out);
	if (r != PENSTOCK_OK)
		return r;
	end(&a);
	return (int64_t)a.result;
}

/* Copies text to the caller, cut to the room that there is, and returns its whole length. */
static int64_t copy_text(const unsigned char *s, size_t length, char *to, size_t n)
{
	if (to && n > 0) {
		size_t k = length < n - 1 ? length : n - 1;
		memcpy(to, s, k);
		to[k] = 0;
	}
	return (int64_t)length;
}

/* A call that returns text, and a number with it, unless result is NULL. */
static int64_t said(request *q, char *to, size_t n, int32_t *result, penstock_error *out)
{
	answer a;
	int32_t r = ask(q, &a, out);
	if (r != PENSTOCK_OK)
		return r;
	uint32_t length = get_u32(&a);
	const unsigned char *s = get_data(&a, length);
	int64_t k = s ? copy_text(s, length, to, n) : unreadable(out);
	if (result)
		*result = (int32_t)a.result;
	end(&a);
	return k;
}

/* A call of a handle that returns text. */
static int64_t text(uint32_t op, penstock_handle h, char *to, size_t n, penstock_error *out)
{
	request q;
	int32_t r = of(&q, op, h, out);
	return r != PENSTOCK_OK ? r : said(&q, to, n, NULL, out);
}

static penstock_handle no_memory(penstock_handle h, penstock_error *out)
{
	request q;
	begin(&q, CLOSE);
	put_u64(&q, h);
	call(&q, NULL);
	fail(out, PENSTOCK_OTHER, "there is no memory for what is known of a handle, or no room to map it");
	return 0;
}

/* Memory of the caller that goes with a transfer: of the host, which the agent does not touch after its end, or of a device, which it has open. */
enum { LENT = 1, HELD = 2 };

uint32_t penstock_abi(void) { return PENSTOCK_ABI; }

penstock_handle penstock_open(const char *yaml, penstock_error *out)
{
	request q;
	if (ready(out) != PENSTOCK_OK)
		return 0;
	begin(&q, OPEN);
	put_text(&q, yaml);
	penstock_handle h = make(&q, out);
	if (h && !keep(h, SYSTEM))
		return no_memory(h, out);
	return h;
}

int32_t penstock_close(penstock_handle h, penstock_error *out)
{
	request q;
	int32_t r = of(&q, CLOSE, h, out);
	object *o = find(h);
	if (r == PENSTOCK_OK && o && o->kind == TRANSFER && (!o->lends || (o->lends == LENT && o->over))) { /* which nothing waits for */
		o = forget(h);
		if (o) {
			discard(o);
			return tell(&q, out);
		}
	}
	if (r == PENSTOCK_OK)
		r = call(&q, out);
	if (r != PENSTOCK_INVALID)
		discard(forget(h));
	return r;
}

int64_t penstock_addresses(penstock_handle system, char *to, size_t n, penstock_error *out) { return text(ADDRESSES, system, to, n, out); }

int64_t penstock_status(penstock_handle system, char *to, size_t n, penstock_error *out) { return text(STATUS, system, to, n, out); }

int64_t penstock_log(char *to, size_t n, int64_t timeout, penstock_error *out)
{
	request q;
	if (!to && n == 0 && timeout == 0) { /* systems that are opened from now on keep what they log: the agent has to know */
		int32_t r = ready(out);
		if (r != PENSTOCK_OK)
			return r;
	} else if (!connected()) { /* no system is open */
		return copy_text((const unsigned char *)"", 0, to, n);
	}
	begin(&q, LOG);
	put_u64(&q, to ? n : 0);
	put_u64(&q, (uint64_t)timeout);
	return said(&q, to, n, NULL, out);
}

penstock_handle penstock_alloc(const char *name, uint64_t size, uint32_t flags, penstock_error *out)
{
	request q;
	answer a;
	if (ready(out) != PENSTOCK_OK)
		return 0;
	begin(&q, ALLOC);
	put_text(&q, name);
	put_u64(&q, size);
	put_u32(&q, flags);
	penstock_handle h = made(&q, &a, out);
	if (!h)
		return 0;
	uint64_t length = get_u64(&a);
	object *o = a.fd < 0 || a.bad ? NULL : keep(h, REGION);
	if (o) {
		void *p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, a.fd, 0);
		if (p == MAP_FAILED) {
			discard(forget(h));
			o = NULL;
		} else {
			o->memory = p;
			o->size = length;
			o->mapped = 1;
		}
	}
	end(&a);
	return o ? h : no_memory(h, out);
}

penstock_handle penstock_adopt(const char *name, void *memory, uint64_t size, penstock_error *out)
{
	request q;
	if (ready(out) != PENSTOCK_OK)
		return 0;
	device d;
	if (device_of(memory, size, &d, out) != PENSTOCK_OK)
		return 0;
	begin(&q, ADOPT);
	put_text(&q, name);
	put_memory(&q, memory, size, &d);
	penstock_handle h = make(&q, out);
	if (!h)
		return 0;
	object *o = keep(h, REGION);
	if (!o)
		return no_memory(h, out);
	o->memory = d.is || !size ? NULL : memory;
	o->size = size;
	return h;
}

void *penstock_memory(penstock_handle region, uint64_t *size, penstock_error *out)
{
	if (known(region, out) != PENSTOCK_OK)
		return NULL;
	object *o = find(region);
	if (!o || o->kind != REGION) {
		fail(out, PENSTOCK_INVALID, "handle %llu is not open: expected a region", (unsigned long long)region);
		return NULL;
	}
	if (size)
		*size = o->size;
	return o->memory;
}

int32_t penstock_dma(penstock_handle region, char *to, size_t n, penstock_error *out)
{
	request q;
	int32_t can = 0, r = of(&q, DMA, region, out);
	if (r != PENSTOCK_OK)
		return r;
	int64_t k = said(&q, to, n, &can, out);
	return k < 0 ? (int32_t)k : can;
}

penstock_handle penstock_export(penstock_handle system, penstock_handle region, uint64_t offset, uint64_t length, const char *name, uint32_t rights, uint32_t flags,
	penstock_error *out)
{
	request q;
	if (of(&q, EXPORT, system, out) != PENSTOCK_OK || known(region, out) != PENSTOCK_OK)
		return 0;
	put_u64(&q, region);
	put_u64(&q, offset);
	put_u64(&q, length);
	put_text(&q, name);
	put_u32(&q, rights);
	put_u32(&q, flags);
	return make(&q, out);
}

penstock_handle penstock_publish(penstock_handle system, penstock_handle region, uint64_t offset, const penstock_tensor *t, const char *name, uint32_t rights,
	uint32_t flags, penstock_error *out)
{
	request q;
	if (of(&q, PUBLISH, system, out) != PENSTOCK_OK || known(region, out) != PENSTOCK_OK)
		return 0;
	if (!t || t->rank > 32 || t->reserved != 0) {
		fail(out, PENSTOCK_INVALID, "a penstock_tensor: expected at most 32 dimensions, and 0 for reserved");
		return 0;
	}
	put_u64(&q, region);
	put_u64(&q, offset);
	put_data(&q, t->dtype, strnlen(t->dtype, sizeof t->dtype));
	put_u32(&q, t->rank);
	put_bytes(&q, t->shape, t->rank * sizeof *t->shape);
	put_text(&q, name);
	put_u32(&q, rights);
	put_u32(&q, flags);
	return make(&q, out);
}

/* What an answer says of a tensor. */
static void get_tensor(answer *a, penstock_tensor *t)
{
	memset(t, 0, sizeof *t);
	uint32_t n = get_u32(a);
	const unsigned char *name = get_data(a, n);
	if (name)
		copy_text(name, n, t->dtype, sizeof t->dtype);
	t->rank = get_u32(a);
	if (t->rank > 32) {
		a->bad = 1;
		t->rank = 0;
	}
	for (uint32_t i = 0; i < t->rank; i++)
		t->shape[i] = (int64_t)get_u64(a);
}

int32_t penstock_describe(penstock_handle remote, penstock_tensor *t, penstock_error *out)
{
	request q;
	answer a;
	int32_t r = of(&q, DESCRIBE, remote, out);
	if (r != PENSTOCK_OK || (r = ask(&q, &a, out)) != PENSTOCK_OK)
		return r;
	r = (int32_t)a.result;
	if (!t)
		r = fail(out, PENSTOCK_INVALID, "no penstock_tensor");
	else if (r == 1) {
		get_tensor(&a, t);
		if (a.bad)
			r = unreadable(out);
	}
	end(&a);
	return r;
}

int32_t penstock_tag(penstock_handle remote, uint8_t *tag, penstock_error *out)
{
	request q;
	answer a;
	int32_t r = of(&q, TAG, remote, out);
	if (r != PENSTOCK_OK || (r = ask(&q, &a, out)) != PENSTOCK_OK)
		return r;
	r = (int32_t)a.result;
	if (!tag)
		r = fail(out, PENSTOCK_INVALID, "no room for a tag");
	else if (r == 1) {
		const unsigned char *b = get_data(&a, 16);
		if (b)
			memcpy(tag, b, 16);
		else
			r = unreadable(out);
	}
	end(&a);
	return r;
}

penstock_handle penstock_serve(penstock_handle system, const char *path, uint32_t flags, penstock_error *out)
{
	request q;
	if (of(&q, SERVE, system, out) != PENSTOCK_OK)
		return 0;
	char *whole = path && *path && *path != '/' ? realpath(path, NULL) : NULL; /* the agent may be in another directory */
	put_text(&q, whole ? whole : path);
	free(whole);
	put_u32(&q, flags);
	return make(&q, out);
}

penstock_handle penstock_dial(penstock_handle system, const char *address, int64_t timeout, penstock_error *out)
{
	request q;
	if (of(&q, DIAL, system, out) != PENSTOCK_OK)
		return 0;
	put_text(&q, address);
	put_u64(&q, (uint64_t)timeout);
	return make(&q, out);
}

penstock_handle penstock_lookup(penstock_handle peer, const char *name, int64_t timeout, uint64_t *size, uint32_t *rights, penstock_error *out)
{
	request q;
	answer a;
	if (of(&q, LOOKUP, peer, out) != PENSTOCK_OK)
		return 0;
	put_text(&q, name);
	put_u64(&q, (uint64_t)timeout);
	penstock_handle h = made(&q, &a, out);
	if (!h)
		return 0;
	uint64_t s = get_u64(&a);
	uint32_t r = get_u32(&a);
	if (size)
		*size = s;
	if (rights)
		*rights = r;
	end(&a);
	return h;
}

penstock_handle penstock_list(penstock_handle peer, const char *prefix, int64_t timeout, penstock_error *out)
{
	request q;
	if (of(&q, LIST, peer, out) != PENSTOCK_OK)
		return 0;
	put_text(&q, prefix);
	put_u64(&q, (uint64_t)timeout);
	penstock_handle h = make(&q, out);
	if (h && !keep(h, LISTING))
		return no_memory(h, out);
	return h;
}

int64_t penstock_entries(penstock_handle listing, penstock_entry *to, size_t n, penstock_error *out)
{
	request q;
	answer a;
	int32_t r = of(&q, ENTRIES, listing, out);
	if (r != PENSTOCK_OK)
		return r;
	if (!to || n == 0)
		return fail(out, PENSTOCK_INVALID, "no room for a penstock_entry");
	put_u32(&q, n < 1024 ? (uint32_t)n : 1024);
	if ((r = ask(&q, &a, out)) != PENSTOCK_OK)
		return r;
	object *o = find(listing);
	struct chunk *c = o ? malloc(sizeof *c + a.n) : NULL; /* the names are shorter than the answer */
	int64_t k = 0;
	size_t at = 0;
	if (c)
		for (; k < (int64_t)a.result && k < (int64_t)n && !a.bad; k++) {
			penstock_entry *e = &to[k];
			memset(e, 0, sizeof *e);
			uint32_t length = get_u32(&a);
			const unsigned char *name = get_data(&a, length);
			e->size = get_u64(&a);
			e->rights = get_u32(&a);
			e->described = get_u32(&a);
			if (e->described)
				get_tensor(&a, &e->what);
			if (!name)
				break;
			e->name = c->text + at;
			memcpy(c->text + at, name, length);
			c->text[at + length] = 0;
			at += length + 1;
		}
	if (!c)
		k = fail(out, PENSTOCK_OTHER, "there is no memory for the names of a listing");
	else {
		c->next = o->names;
		o->names = c;
		if (a.bad)
			k = unreadable(out);
	}
	end(&a);
	return k;
}

static const penstock_options none;

/* Refuses options that no request can have. */
static int32_t check(const penstock_options *o, penstock_error *out)
{
	if (o && o->reserved != 0)
		return fail(out, PENSTOCK_INVALID, "penstock_options.reserved is %u: expected 0", o->reserved);
	if (o && (o->message_size > 1 << 20 || (!o->message && o->message_size > 0)))
		return fail(out, PENSTOCK_INVALID, "a message of %u bytes: expected an address and %d at most", o->message_size, 1 << 20);
	return PENSTOCK_OK;
}

static void put_modes(request *q, const penstock_options *o)
{
	if (!o)
		o = &none;
	put_data(q, o->message, o->message_size);
	put_u32(q, o->tag);
	put_text(q, o->paths);
	put_u32(q, o->digest);
}

/* Blocks and options of a transfer. The layout of a block in a request is that of penstock_block. */
static int32_t put_list(request *q, int32_t what, const penstock_block *blocks, size_t n, const penstock_options *o, penstock_error *out)
{
	if (!blocks || n == 0 || n > MAX_BODY / sizeof *blocks)
		return fail(out, PENSTOCK_INVALID, "%zu blocks: expected 1 to %zu", blocks ? n : 0, MAX_BODY / sizeof *blocks);
	int32_t r = known(blocks->region, out);
	if (r == PENSTOCK_OK)
		r = known(blocks->remote, out);
	if (r == PENSTOCK_OK)
		r = check(o, out);
	if (r != PENSTOCK_OK)
		return r;
	put_u32(q, (uint32_t)what);
	put_u32(q, (uint32_t)n);
	put_bytes(q, blocks, n * sizeof *blocks);
	put_modes(q, o);
	return PENSTOCK_OK;
}

/* A call that begins a transfer. */
static penstock_handle post(request *q, int lends, penstock_error *out)
{
	answer a;
	penstock_handle h = made(q, &a, out);
	if (!h)
		return 0;
	object *o = keep(h, TRANSFER);
	if (o) {
		o->over = get_u32(&a) == 1;
		o->lends = lends;
	}
	end(&a);
	return o ? h : no_memory(h, out);
}

penstock_handle penstock_post(penstock_handle peer, int32_t what, const penstock_block *blocks, size_t n, const penstock_options *o, penstock_error *out)
{
	request q;
	if (of(&q, POST, peer, out) != PENSTOCK_OK || put_list(&q, what, blocks, n, o, out) != PENSTOCK_OK)
		return 0;
	return post(&q, 0, out);
}

penstock_handle penstock_post_memory(penstock_handle peer, int32_t what, void *memory, uint64_t size, penstock_handle remote, uint64_t remote_offset,
	const penstock_options *o, penstock_error *out)
{
	request q;
	device d;
	if (of(&q, POST_MEMORY, peer, out) != PENSTOCK_OK || known(remote, out) != PENSTOCK_OK || check(o, out) != PENSTOCK_OK || device_of(memory, size, &d, out) != PENSTOCK_OK)
		return 0;
	put_u32(&q, (uint32_t)what);
	put_memory(&q, memory, size, &d);
	put_u64(&q, remote);
	put_u64(&q, remote_offset);
	put_modes(&q, o);
	return post(&q, d.is ? HELD : LENT, out);
}

penstock_handle penstock_notify(penstock_handle peer, const penstock_options *o, penstock_error *out)
{
	request q;
	if (of(&q, NOTIFY, peer, out) != PENSTOCK_OK || check(o, out) != PENSTOCK_OK)
		return 0;
	put_modes(&q, o);
	return post(&q, 0, out);
}

penstock_handle penstock_prepare(penstock_handle peer, int32_t what, const penstock_block *blocks, size_t n, const penstock_options *o, penstock_error *out)
{
	request q;
	if (of(&q, PREPARE, peer, out) != PENSTOCK_OK || put_list(&q, what, blocks, n, o, out) != PENSTOCK_OK)
		return 0;
	return make(&q, out);
}

penstock_handle penstock_repost(penstock_handle prepared, penstock_error *out)
{
	request q;
	if (of(&q, REPOST, prepared, out) != PENSTOCK_OK)
		return 0;
	penstock_handle h = name(&q, out); /* nobody waits for an answer: penstock_wait does */
	return h && !keep(h, TRANSFER) ? no_memory(h, out) : h;
}

int32_t penstock_wait(penstock_handle transfer, int64_t timeout, penstock_error *out)
{
	request q;
	int32_t r = of(&q, WAIT, transfer, out);
	if (r != PENSTOCK_OK)
		return r;
	object *o = find(transfer);
	if (o && o->over) /* as the answer to the post said */
		return PENSTOCK_OK;
	put_u64(&q, (uint64_t)timeout);
	r = call(&q, out);
	if (o && r == PENSTOCK_OK)
		o->over = 1;
	return r;
}

double penstock_progress(penstock_handle transfer)
{
	request q;
	answer a;
	double x;
	if (of(&q, PROGRESS, transfer, NULL) != PENSTOCK_OK || ask(&q, &a, NULL) != PENSTOCK_OK)
		return -1;
	memcpy(&x, &a.result, sizeof x);
	end(&a);
	return x;
}

int32_t penstock_cancel(penstock_handle transfer, penstock_error *out)
{
	request q;
	int32_t r = of(&q, CANCEL, transfer, out);
	return r != PENSTOCK_OK ? r : (int32_t)number(&q, out);
}

int64_t penstock_explain(penstock_handle transfer, char *to, size_t n, penstock_error *out) { return text(EXPLAIN, transfer, to, n, out); }

int32_t penstock_event_fd(penstock_handle system, penstock_error *out)
{
	request q;
	answer a;
	int32_t r = of(&q, EVENT_FD, system, out);
	if (r != PENSTOCK_OK)
		return r;
	object *o = find(system);
	if (!o || o->kind != SYSTEM)
		return fail(out, PENSTOCK_INVALID, "handle %llu is not open: expected a system", (unsigned long long)system);
	pthread_mutex_lock(&events);
	if (o->fd >= 0)
		r = o->fd;
	else if ((r = ask(&q, &a, out)) == PENSTOCK_OK) {
		o->fd = watch(a.fd);
		o->event = a.fd;
		a.fd = -1;
		end(&a);
		r = o->fd >= 0 ? o->fd : fail(out, PENSTOCK_OTHER, "a descriptor of the system's event cannot be made");
	}
	pthread_mutex_unlock(&events);
	return r;
}

int32_t penstock_watch(penstock_handle transfer, penstock_error *out)
{
	request q;
	int32_t r = of(&q, WATCH, transfer, out);
	return r != PENSTOCK_OK ? r : call(&q, out);
}

int64_t penstock_ended(penstock_handle system, penstock_handle *transfers, size_t n, penstock_error *out)
{
	request q;
	answer a;
	int32_t r = of(&q, ENDED, system, out);
	if (r != PENSTOCK_OK)
		return r;
	put_u32(&q, !transfers ? 0 : n < 4096 ? (uint32_t)n : 4096);
	if ((r = ask(&q, &a, out)) != PENSTOCK_OK)
		return r;
	int64_t k = 0;
	for (; k < (int64_t)a.result && transfers && k < (int64_t)n; k++)
		transfers[k] = get_u64(&a);
	if (a.bad)
		k = unreadable(out);
	end(&a);
	return k;
}

int32_t penstock_subscribe(penstock_handle system, uint32_t tag, penstock_error *out)
{
	request q;
	int32_t r = of(&q, SUBSCRIBE, system, out);
	put_u32(&q, tag);
	return r != PENSTOCK_OK ? r : call(&q, out);
}

int32_t penstock_receive(penstock_handle system, penstock_message *to, void *room, size_t n, int64_t timeout, penstock_error *out)
{
	request q;
	answer a;
	int32_t r = of(&q, RECEIVE, system, out);
	if (r != PENSTOCK_OK)
		return r;
	if (!to)
		return fail(out, PENSTOCK_INVALID, "no penstock_message");
	put_u64(&q, (uint64_t)timeout);
	if ((r = ask(&q, &a, out)) != PENSTOCK_OK)
		return r;
	r = (int32_t)a.result;
	if (r == 1) {
		to->tag = get_u32(&a);
		to->bytes = get_u64(&a);
		uint32_t length = get_u32(&a);
		const unsigned char *name = get_data(&a, length);
		to->size = get_u32(&a);
		const unsigned char *message = get_data(&a, to->size);
		if (name && message) {
			copy_text(name, length, to->peer, sizeof to->peer);
			if (room)
				memcpy(room, message, to->size < n ? to->size : n);
		} else
			r = unreadable(out);
	}
	end(&a);
	return r;
}

/* Packets. */

penstock_handle penstock_rx(penstock_handle system, const char *interface_name, int32_t queue, penstock_error *out)
{
	request q;
	if (of(&q, RX, system, out) != PENSTOCK_OK)
		return 0;
	put_text(&q, interface_name);
	put_u32(&q, (uint32_t)queue);
	penstock_handle h = make(&q, out);
	if (h && !keep(h, QUEUE))
		return no_memory(h, out);
	return h;
}

/* The queue of a handle. */
static object *queue_of(penstock_handle h, penstock_error *out)
{
	if (known(h, out) != PENSTOCK_OK)
		return NULL;
	object *o = find(h);
	if (o && o->kind == QUEUE)
		return o;
	fail(out, PENSTOCK_INVALID, "handle %llu is not open: expected a receive queue", (unsigned long long)h);
	return NULL;
}

int64_t penstock_burst(penstock_handle rx, penstock_segment *to, size_t n, int64_t timeout, penstock_error *out)
{
	request q;
	answer a;
	penstock_error mine = {0};
	object *o = queue_of(rx, out ? out : (out = &mine));
	if (!o)
		return out->code;
	if (!to || n == 0)
		return fail(out, PENSTOCK_INVALID, "no room for segments");
	if (o->packets > 0)
		return fail(out, PENSTOCK_INVALID, "the caller has %u packets of the last burst: call penstock_release", o->packets);
	begin(&q, BURST);
	put_u64(&q, rx);
	put_u32(&q, n < 1 << 20 ? (uint32_t)n : 1 << 20);
	put_u64(&q, (uint64_t)timeout);
	int64_t r = ask(&q, &a, out);
	if (r != PENSTOCK_OK)
		return r;
	int64_t k = 0;
	if (a.result > 0) {
		uint64_t size = get_u64(&a);
		if (a.fd >= 0) { /* the agent has other memory for the packets than before */
			if (o->memory)
				munmap(o->memory, o->size);
			void *p = mmap(NULL, size, PROT_READ, MAP_SHARED, a.fd, 0);
			o->memory = p == MAP_FAILED ? NULL : p;
			o->size = p == MAP_FAILED ? 0 : size;
			o->mapped = p != MAP_FAILED;
		}
		for (; k < (int64_t)a.result && k < (int64_t)n; k++) {
			penstock_segment *s = &to[k];
			uint64_t at = get_u64(&a);
			s->size = get_u32(&a);
			s->packet = get_u32(&a);
			s->flow = get_u32(&a);
			s->timed = get_u32(&a);
			s->time = (int64_t)get_u64(&a);
			if (a.bad || at > o->size || s->size > o->size - at) {
				end(&a);
				return unreadable(out);
			}
			s->data = o->memory + at;
			o->packets = s->packet + 1;
		}
	}
	end(&a);
	return k;
}

int32_t penstock_batch_of(penstock_handle rx, uint32_t packet, penstock_batch *to, uint64_t *present, size_t words, penstock_error *out)
{
	request q;
	answer a;
	penstock_error mine = {0};
	object *o = queue_of(rx, out ? out : (out = &mine));
	if (!o)
		return out->code;
	if (!to)
		return fail(out, PENSTOCK_INVALID, "no penstock_batch");
	if (packet >= o->packets)
		return fail(out, PENSTOCK_INVALID, "packet %u: the caller has %u of the last burst", packet, o->packets);
	begin(&q, BATCH);
	put_u64(&q, rx);
	put_u32(&q, packet);
	int32_t r = ask(&q, &a, out);
	if (r != PENSTOCK_OK)
		return r;
	r = (int32_t)a.result;
	if (r == 1) {
		to->id = (int64_t)get_u64(&a);
		to->packets = get_u32(&a);
		to->per_batch = get_u32(&a);
		to->timed_out = get_u32(&a);
		to->first = (int64_t)get_u64(&a);
		to->last = (int64_t)get_u64(&a);
		get_tensor(&a, &to->what);
		to->words = get_u32(&a);
		for (uint32_t i = 0; i < to->words && !a.bad; i++) {
			uint64_t w = get_u64(&a);
			if (present && i < words)
				present[i] = w;
		}
		if (a.bad)
			r = unreadable(out);
	}
	end(&a);
	return r;
}

int32_t penstock_release(penstock_handle rx, penstock_error *out)
{
	penstock_error mine = {0};
	object *o = queue_of(rx, out ? out : (out = &mine));
	if (!o)
		return out->code;
	o->packets = 0;
	return PENSTOCK_OK;
}

int64_t penstock_send(penstock_handle system, const char *interface_name, int32_t queue, const penstock_segment *packets, size_t n, penstock_error *out)
{
	enum { BYTES = 1 << 20, PACKETS = 1024 };
	int64_t sent = 0;
	if (!packets || n == 0)
		return fail(out, PENSTOCK_INVALID, "no packets");
	while (sent < (int64_t)n) { /* a part after the other */
		request q;
		size_t bytes = 0, k = 0;
		int32_t r = of(&q, SEND, system, out);
		if (r != PENSTOCK_OK)
			return r;
		while (k < PACKETS && sent + k < n && (k == 0 || bytes + packets[sent + k].size <= BYTES)) {
			if (!packets[sent + k].data)
				return fail(out, PENSTOCK_INVALID, "packet %zu has no data", (size_t)sent + k);
			bytes += packets[sent + k++].size;
		}
		put_text(&q, interface_name);
		put_u32(&q, (uint32_t)queue);
		put_u32(&q, (uint32_t)k);
		for (size_t i = 0; i < k; i++)
			put_data(&q, packets[sent + i].data, packets[sent + i].size);
		int64_t done = number(&q, out);
		if (done < 0)
			return done;
		sent += done;
		if (done < (int64_t)k)
			break;
	}
	return sent;
}
