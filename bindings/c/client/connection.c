/* The connection with the agent. Threads send one after the other; of those that wait for answers one reads, and hands the others theirs. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "client.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const uint64_t NAMED = 1ull << 41; /* in a handle: name has given it; the agent gives none with it */

enum { PID_SHIFT = 42, BUCKETS = 4096, MAX_FDS = 16, LOOK = 30000 /* ns before a thread sleeps: to be woken takes as long as a small transfer */ };

/* A call that waits for its answer. */
struct waiting {
	struct waiting *next;
	uint64_t id;
	answer *a;
	int done;
	int32_t code;
	uint32_t retriable;
	pthread_cond_t cond;
};

static pthread_mutex_t sending = PTHREAD_MUTEX_INITIALIZER; /* held for one request; before mu */
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;      /* guards what follows */
static enum { NONE, CONNECTED, LOST } state;
static int sock = -1;
static uint64_t ids;
static uint64_t after, last;    /* handles of this agent are larger than after; the largest one so far */
static uint64_t names, before;  /* the last handle that name has given, and the last one with the agent before */
static struct waiting *waiting; /* in the order of their requests */
static int reading;             /* a thread reads */

/* Of the thread that reads: what was received and not handed out. */
static unsigned char in[64 << 10];
static size_t in_at, in_n;
static int fds[MAX_FDS], fds_n;
static int skip, misses; /* receives that do not look, after so many looks in a row in vain */

static pthread_mutex_t objects_mu = PTHREAD_MUTEX_INITIALIZER;
static object *objects[BUCKETS];

/* Requests without an answer, which go with the next one that has one. sending guards them. */
static unsigned char pending[64 * (REQUEST_HEADER + 8)];
static size_t pending_n;

pthread_mutex_t events = PTHREAD_MUTEX_INITIALIZER;

static uint64_t self; /* this process */

static void begins(void)
{
	self = (uint64_t)getpid();
	after = last = self << PID_SHIFT;
	names = before = after | NAMED;
}

/* In the child of a fork there is no thread that could be in a call, and the connection is the parent's. */
static void forked(void)
{
	pthread_mutex_init(&sending, NULL);
	pthread_mutex_init(&mu, NULL);
	pthread_mutex_init(&objects_mu, NULL);
	pthread_mutex_init(&events, NULL);
	if (state == CONNECTED)
		close(sock);
	for (int i = 0; i < fds_n; i++)
		close(fds[i]);
	state = NONE;
	sock = -1;
	waiting = NULL;
	reading = 0;
	in_at = in_n = 0;
	fds_n = skip = misses = 0;
	pending_n = 0;
	for (int i = 0; i < BUCKETS; i++)
		while (objects[i]) {
			object *o = objects[i];
			objects[i] = o->next;
			o->mapped = 0; /* memory stays where it is: there may be views of it */
			discard(o);
		}
	begins();
}

__attribute__((constructor)) static void loaded(void)
{
	begins();
	pthread_atfork(NULL, NULL, forked);
}

int32_t fail(penstock_error *out, int32_t code, const char *format, ...)
{
	if (out) {
		va_list v;
		va_start(v, format);
		out->code = code;
		out->retriable = 0;
		vsnprintf(out->text, sizeof out->text, format, v);
		va_end(v);
	}
	return code;
}

/* Requests. */

void begin(request *q, uint32_t op)
{
	q->b = q->first;
	q->room = sizeof q->first;
	q->n = REQUEST_HEADER;
	q->full = 0;
	memset(q->first, 0, REQUEST_HEADER);
	memcpy(q->first + 4, &op, 4);
}

void put_bytes(request *q, const void *b, size_t n)
{
	if (q->full || n > MAX_BODY - (q->n - REQUEST_HEADER)) {
		q->full = 1;
		return;
	}
	if (n > q->room - q->n) {
		size_t room = 2 * (q->n + n);
		unsigned char *more = q->b == q->first ? malloc(room) : realloc(q->b, room);
		if (!more) {
			q->full = 1;
			return;
		}
		if (q->b == q->first)
			memcpy(more, q->first, q->n);
		q->b = more;
		q->room = room;
	}
	if (n > 0)
		memcpy(q->b + q->n, b, n);
	q->n += n;
}

void put_u32(request *q, uint32_t x) { put_bytes(q, &x, 4); }
void put_u64(request *q, uint64_t x) { put_bytes(q, &x, 8); }

void put_data(request *q, const void *b, size_t n)
{
	if (n > MAX_BODY) {
		q->full = 1;
		return;
	}
	put_u32(q, (uint32_t)n);
	put_bytes(q, b, n);
}

void put_text(request *q, const char *s) { put_data(q, s, s ? strlen(s) : 0); }

static void finish(request *q)
{
	if (q->b != q->first)
		free(q->b);
}

/* Answers. */

const unsigned char *get_data(answer *a, size_t n)
{
	if (n > a->n - a->at) {
		a->bad = 1;
		a->at = a->n;
		return NULL;
	}
	a->at += n;
	return a->b + a->at - n;
}

uint32_t get_u32(answer *a)
{
	uint32_t x = 0;
	const unsigned char *b = get_data(a, 4);
	if (b)
		memcpy(&x, b, 4);
	return x;
}

uint64_t get_u64(answer *a)
{
	uint64_t x = 0;
	const unsigned char *b = get_data(a, 8);
	if (b)
		memcpy(&x, b, 8);
	return x;
}

void end(answer *a)
{
	if (a->b != a->first)
		free(a->b);
	if (a->fd >= 0)
		close(a->fd);
}

/* The connection. */

static int32_t lost(penstock_error *out)
{
	return fail(out, PENSTOCK_LOST, "the agent of this process (penstock agent) has ended, and what it had with it: open the system again");
}

/*
 * Ends the connection and all calls that wait; where a thread reads, it does the second when it finds the end. mu is held. The socket stays open, for those who
 * wait for its descriptor.
 */
static void lose(void)
{
	if (state == CONNECTED) {
		state = LOST;
		shutdown(sock, SHUT_RDWR);
	}
	if (reading)
		return;
	for (struct waiting *w = waiting; w; w = w->next) {
		w->code = PENSTOCK_LOST;
		w->done = 1;
		pthread_cond_signal(&w->cond);
	}
	waiting = NULL;
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Receives into b, and descriptors that come with it; 0 at the end of the connection. */
static size_t receive(int fd, void *b, size_t n)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(MAX_FDS * sizeof(int))];
	} control;
	struct iovec v = {b, n};
	int look = skip == 0;
	skip -= !look;
	int64_t until = look ? now() + LOOK : 0;
	for (;;) {
		struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
		ssize_t k = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | (look ? MSG_DONTWAIT : 0));
		if (k < 0 && (errno == EINTR || (look && errno == EAGAIN))) {
			if (look && now() >= until) { /* where processors are busy it is in the way of others */
				look = 0;
				skip = 1 << misses;
				misses += misses < 8;
			}
			continue;
		}
		if (look)
			misses = 0;
		if (k <= 0)
			return 0;
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
			if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
				continue;
			for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
				int got;
				memcpy(&got, CMSG_DATA(c) + i * sizeof got, sizeof got);
				if (fds_n < MAX_FDS)
					fds[fds_n++] = got;
				else
					close(got);
			}
		}
		return (size_t)k;
	}
}

/* Receives all n bytes; 0 at the end of the connection. */
static int receive_all(int fd, unsigned char *b, size_t n)
{
	size_t have = in_n - in_at < n ? in_n - in_at : n;
	memcpy(b, in + in_at, have);
	in_at += have;
	while (have < n) {
		if (n - have < sizeof in) { /* with what follows it */
			size_t k = receive(fd, in, sizeof in);
			in_at = 0;
			in_n = k;
			if (k == 0)
				return 0;
			size_t take = k < n - have ? k : n - have;
			memcpy(b + have, in, take);
			in_at = take;
			have += take;
			continue;
		}
		size_t k = receive(fd, b + have, n - have);
		if (k == 0)
			return 0;
		have += k;
	}
	return 1;
}

/* Receives one answer and gives it to its call; 0 at the end of the connection. The caller is the thread that reads. */
static int step(int fd)
{
	unsigned char header[ANSWER_HEADER];
	uint32_t size, with, retriable;
	int32_t code;
	uint64_t id, result;
	if (!receive_all(fd, header, sizeof header))
		return 0;
	memcpy(&size, header, 4);
	memcpy(&code, header + 4, 4);
	memcpy(&id, header + 8, 8);
	memcpy(&result, header + 16, 8);
	memcpy(&with, header + 24, 4);
	memcpy(&retriable, header + 28, 4);
	struct waiting *w;
	pthread_mutex_lock(&mu);
	for (w = waiting; w && w->id != id; w = w->next)
		;
	pthread_mutex_unlock(&mu);
	if (!w)
		return 0;
	answer *a = w->a;
	a->n = size;
	a->result = result;
	if (size > sizeof a->first && !(a->b = malloc(size))) {
		a->b = a->first;
		return 0;
	}
	if (!receive_all(fd, a->b, size))
		return 0;
	if (with) {
		if (fds_n == 0)
			return 0;
		a->fd = fds[0];
		memmove(fds, fds + 1, (size_t)--fds_n * sizeof *fds);
	}
	pthread_mutex_lock(&mu);
	for (struct waiting **p = &waiting; *p; p = &(*p)->next)
		if (*p == w) {
			*p = w->next;
			break;
		}
	w->code = code;
	w->retriable = retriable;
	w->done = 1;
	pthread_cond_signal(&w->cond);
	pthread_mutex_unlock(&mu);
	return 1;
}

static int send_all(int fd, const unsigned char *b, size_t n)
{
	while (n > 0) {
		ssize_t k = send(fd, b, n, MSG_NOSIGNAL);
		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return 0;
		b += k;
		n -= (size_t)k;
	}
	return 1;
}

int connected(void)
{
	pthread_mutex_lock(&mu);
	int is = state == CONNECTED;
	pthread_mutex_unlock(&mu);
	return is;
}

/*
 * Sends a request, after what is pending. w waits for its answer, which is an error where it cannot be sent. NULL: there will be none, and
 * the last field is a new name, which is stored.
 */
static int32_t dispatch(request *q, struct waiting *w, penstock_handle *named, penstock_error *out)
{
	unsigned char both[sizeof pending + 512];
	if (q->full) {
		finish(q);
		return fail(out, PENSTOCK_INVALID, "the arguments of a call are more than %d bytes, or there is no memory for them", MAX_BODY);
	}
	uint32_t size = (uint32_t)(q->n - REQUEST_HEADER);
	memcpy(q->b, &size, 4);
	pthread_mutex_lock(&sending);
	pthread_mutex_lock(&mu);
	int fd = sock;
	if (state != CONNECTED) {
		pthread_mutex_unlock(&mu);
		pthread_mutex_unlock(&sending);
		finish(q);
		return lost(out);
	}
	if (w) {
		w->id = ++ids;
		memcpy(q->b + 8, &w->id, 8);
		struct waiting **p = &waiting;
		while (*p)
			p = &(*p)->next;
		*p = w;
	} else {
		*named = ++names; /* the agent takes names in their order, and sending is held */
		memcpy(q->b + q->n - 8, named, 8);
	}
	pthread_mutex_unlock(&mu);
	int sent = 1;
	size_t before = pending_n;
	pending_n = 0;
	if (before > 0 && before + q->n <= sizeof both) {
		memcpy(both, pending, before);
		memcpy(both + before, q->b, q->n);
		sent = send_all(fd, both, before + q->n);
	} else
		sent = send_all(fd, pending, before) && send_all(fd, q->b, q->n);
	if (!sent) {
		pthread_mutex_lock(&mu);
		lose();
		pthread_mutex_unlock(&mu);
	}
	pthread_mutex_unlock(&sending);
	finish(q);
	return PENSTOCK_OK;
}

penstock_handle name(request *q, penstock_error *out)
{
	penstock_handle h = 0;
	put_u64(q, 0);
	return dispatch(q, NULL, &h, out) == PENSTOCK_OK ? h : 0;
}

int32_t tell(request *q, penstock_error *out)
{
	uint32_t size = (uint32_t)(q->n - REQUEST_HEADER);
	memcpy(q->b, &size, 4);
	pthread_mutex_lock(&sending);
	int32_t r = connected() ? PENSTOCK_OK : lost(out);
	if (r == PENSTOCK_OK && q->n > sizeof pending - pending_n) {
		if (!send_all(sock, pending, pending_n)) {
			pthread_mutex_lock(&mu);
			lose();
			pthread_mutex_unlock(&mu);
		}
		pending_n = 0;
	}
	if (r == PENSTOCK_OK) {
		memcpy(pending + pending_n, q->b, q->n);
		pending_n += q->n;
	}
	pthread_mutex_unlock(&sending);
	finish(q);
	return r;
}

int32_t ask(request *q, answer *a, penstock_error *out)
{
	struct waiting w = {.a = a, .cond = PTHREAD_COND_INITIALIZER};
	a->b = a->first;
	a->n = a->at = 0;
	a->bad = 0;
	a->fd = -1;
	int32_t r = dispatch(q, &w, NULL, out);
	if (r != PENSTOCK_OK)
		return r;
	pthread_mutex_lock(&mu);
	int fd = sock;
	while (!w.done) {
		if (reading) {
			pthread_cond_wait(&w.cond, &mu);
			continue;
		}
		reading = 1;
		pthread_mutex_unlock(&mu);
		int more = step(fd);
		pthread_mutex_lock(&mu);
		reading = 0;
		if (!more)
			lose();
	}
	if (!reading && waiting) /* the next one reads */
		pthread_cond_signal(&waiting->cond);
	pthread_mutex_unlock(&mu);
	pthread_cond_destroy(&w.cond);
	if (w.code == PENSTOCK_OK)
		return PENSTOCK_OK;
	if (w.code == PENSTOCK_LOST && a->n == 0) {
		end(a);
		return lost(out);
	}
	uint32_t n = get_u32(a);
	const unsigned char *text = get_data(a, n);
	fail(out, w.code, "%.*s", text ? (int)n : 0, text ? (const char *)text : "");
	if (out)
		out->retriable = (int32_t)w.retriable;
	end(a);
	return w.code;
}

/* The first request and its answer, before any other thread has the connection. */
static int32_t greet(int fd, penstock_error *out)
{
	request q;
	begin(&q, HELLO);
	put_u32(&q, VERSION);
	put_u64(&q, last);
	uint32_t size = (uint32_t)(q.n - REQUEST_HEADER);
	uint64_t id = ++ids, agent;
	memcpy(q.b, &size, 4);
	memcpy(q.b + 8, &id, 8);
	unsigned char header[ANSWER_HEADER];
	char text[1016];
	int32_t code;
	if (!send_all(fd, q.b, q.n) || !receive_all(fd, header, sizeof header))
		return fail(out, PENSTOCK_LOST, "the agent has ended before it answered: is the program penstock one that was built with this library?");
	memcpy(&size, header, 4);
	memcpy(&code, header + 4, 4);
	memcpy(&agent, header + 16, 8);
	if (size > sizeof text || !receive_all(fd, (unsigned char *)text, size))
		return fail(out, PENSTOCK_LOST, "the agent does not answer as one that was built with this library");
	if (code != PENSTOCK_OK)
		return fail(out, code, "%.*s", size > 4 ? (int)size - 4 : 0, text + 4);
	prctl(PR_SET_PTRACER, agent, 0, 0, 0); /* so that Yama lets it reach memory that is adopted; where there is no Yama it is not needed */
	return PENSTOCK_OK;
}

void seen(penstock_handle h)
{
	pthread_mutex_lock(&mu);
	if (h > last)
		last = h;
	pthread_mutex_unlock(&mu);
}

int32_t ready(penstock_error *out)
{
	if (connected())
		return PENSTOCK_OK;
	int fd = agent_socket(out); /* where two threads start one each, the second agent ends at once */
	if (fd < 0)
		return -1;
	int32_t r = PENSTOCK_OK;
	pthread_mutex_lock(&sending);
	pthread_mutex_lock(&mu);
	while (reading) { /* the last one of the agent before is leaving */
		pthread_mutex_unlock(&mu);
		sched_yield();
		pthread_mutex_lock(&mu);
	}
	if (state != CONNECTED) {
		in_at = in_n = pending_n = 0;
		fds_n = 0;
		if ((r = greet(fd, out)) == PENSTOCK_OK) {
			sock = fd;
			fd = -1;
			after = last;
			before = names;
			state = CONNECTED;
		}
	}
	pthread_mutex_unlock(&mu);
	pthread_mutex_unlock(&sending);
	if (fd >= 0)
		close(fd);
	return r;
}

int32_t known(penstock_handle h, penstock_error *out)
{
	if (h >> PID_SHIFT != self) {
		if (h >> PID_SHIFT == 0)
			return fail(out, PENSTOCK_INVALID, "handle %llu is not open here: it is none, or of another library that this process, or the one of which it is a fork, has used", (unsigned long long)h);
		return fail(out, PENSTOCK_INVALID, "handle %llu was made by process %llu, and this one is a fork of it: open the system again here", (unsigned long long)h,
			(unsigned long long)(h >> PID_SHIFT));
	}
	pthread_mutex_lock(&mu);
	int gone = state == LOST || h <= (h & NAMED ? before : after);
	pthread_mutex_unlock(&mu);
	return gone ? lost(out) : PENSTOCK_OK;
}

int watch(int event)
{
	int e = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event in_event = {.events = EPOLLIN}, hangup = {.events = EPOLLRDHUP};
	pthread_mutex_lock(&mu);
	int fd = sock;
	pthread_mutex_unlock(&mu);
	if (e >= 0 && (epoll_ctl(e, EPOLL_CTL_ADD, event, &in_event) < 0 || epoll_ctl(e, EPOLL_CTL_ADD, fd, &hangup) < 0)) {
		close(e);
		return -1;
	}
	return e;
}

/* Objects. */

static object **bucket(penstock_handle h) { return &objects[h % BUCKETS]; }

object *keep(penstock_handle h, kind k)
{
	object *o = calloc(1, sizeof *o);
	if (!o)
		return NULL;
	o->h = h;
	o->kind = k;
	o->fd = o->event = -1;
	pthread_mutex_lock(&objects_mu);
	o->next = *bucket(h);
	*bucket(h) = o;
	pthread_mutex_unlock(&objects_mu);
	return o;
}

object *find(penstock_handle h)
{
	pthread_mutex_lock(&objects_mu);
	object *o = *bucket(h);
	while (o && o->h != h)
		o = o->next;
	pthread_mutex_unlock(&objects_mu);
	return o;
}

object *forget(penstock_handle h)
{
	pthread_mutex_lock(&objects_mu);
	object **p = bucket(h);
	while (*p && (*p)->h != h)
		p = &(*p)->next;
	object *o = *p;
	if (o)
		*p = o->next;
	pthread_mutex_unlock(&objects_mu);
	return o;
}

void discard(object *o)
{
	if (!o)
		return;
	if (o->mapped && o->memory)
		munmap(o->memory, o->size);
	if (o->fd >= 0)
		close(o->fd);
	if (o->event >= 0)
		close(o->event);
	while (o->names) {
		struct chunk *c = o->names;
		o->names = c->next;
		free(c);
	}
	free(o);
}
