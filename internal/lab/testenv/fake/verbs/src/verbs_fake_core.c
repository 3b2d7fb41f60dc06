/* Lock, time, objects and their quarantine, event queues, violations and the report. */
#include "verbs_fake.h"

#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { ALIVE_MAGIC = 0x71fe1d5e, DEAD_MAGIC = 0x0dead0b1, QUARANTINE = 1024, MAX_VIOLATIONS = 64 };

pthread_mutex_t the_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *const kind_names[KINDS] = {"context", "pd", "mr", "mw", "comp_channel", "cq", "qp", "srq", "ah", "xrcd", "flow", "cm_channel", "cm_id", "cm_event"};

static struct obj *objects[KINDS];
static uint64_t serials;
static struct obj *grave_first, **grave_last = &grave_first;
static int grave_len;
static char *violations[MAX_VIOLATIONS];
static int violations_len;
static uint64_t violations_all;

void lock(void) { pthread_mutex_lock(&the_lock); }
void unlock(void) { pthread_mutex_unlock(&the_lock); }

uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void *fake_new(size_t size, size_t obj_offset, enum kind kind, struct fake_context *ctx)
{
	const int limits[KINDS] = {[K_PD] = config.attr.max_pd, [K_MR] = config.attr.max_mr, [K_MW] = config.attr.max_mw,
		[K_CQ] = config.attr.max_cq, [K_QP] = config.attr.max_qp, [K_SRQ] = config.attr.max_srq, [K_AH] = config.attr.max_ah};
	int left = 0;
	for (struct obj *o = limits[kind] ? objects[kind] : NULL; o; o = o->next)
		left += o->ctx->dev == ctx->dev;
	char *p = limits[kind] && left >= limits[kind] ? NULL : calloc(1, size);
	if (!p) {
		errno = ENOMEM;
		return NULL;
	}
	struct obj *o = (struct obj *)(p + obj_offset);
	o->magic = ALIVE_MAGIC;
	o->kind = kind;
	o->ctx = ctx;
	o->serial = ++serials;
	o->memory = p;
	o->next = objects[kind];
	if (o->next)
		o->next->prev = o;
	objects[kind] = o;
	return p;
}

/* fake_bury ends an object. Its memory stays readable until QUARANTINE others have followed. */
void fake_bury(struct obj *o)
{
	if (o->prev)
		o->prev->next = o->next;
	else
		objects[o->kind] = o->next;
	if (o->next)
		o->next->prev = o->prev;
	o->magic = DEAD_MAGIC;
	o->prev = o->next = NULL;
	*grave_last = o;
	grave_last = &o->next;
	if (++grave_len > QUARANTINE) {
		struct obj *old = grave_first;
		grave_first = old->next;
		grave_len--;
		free(old->memory);
	}
}

struct obj *fake_first(enum kind kind) { return objects[kind]; }

bool fake_alive(const void *p, const struct obj *o, enum kind kind, const char *where)
{
	if (!p) {
		fake_violation("%s: the %s is NULL", where, kind_names[kind]);
		return false;
	}
	if (o->magic == DEAD_MAGIC) {
		fake_violation("%s: %s #%llu was destroyed before", where, kind_names[kind], (unsigned long long)o->serial);
		return false;
	}
	if (o->magic != ALIVE_MAGIC || o->kind != kind) {
		fake_violation("%s: %p is not a %s", where, p, kind_names[kind]);
		return false;
	}
	return true;
}

void fake_violation(const char *fmt, ...)
{
	char line[256];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	violations_all++;
	if (violations_len < MAX_VIOLATIONS)
		violations[violations_len++] = strdup(line);
}

/* fake_clear_violations is the script's line "reset". */
void fake_clear_violations(void)
{
	while (violations_len > 0)
		free(violations[--violations_len]);
	violations_all = 0;
}

/* ---- events */

int events_open(struct events *q)
{
	q->first = NULL;
	q->last = &q->first;
	q->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	return q->fd < 0 ? errno : 0;
}

void events_close(struct events *q)
{
	events_forget(q, NULL);
	close(q->fd);
	q->fd = -1;
}

void events_put(struct events *q, void *element, const struct ibv_async_event *ev)
{
	struct event *e = calloc(1, sizeof(*e));
	uint64_t one = 1;
	if (!e)
		return;
	e->element = element;
	if (ev)
		e->async = *ev;
	*q->last = e;
	q->last = &e->next;
	if (write(q->fd, &one, sizeof(one)) != sizeof(one))
		fake_violation("an event descriptor cannot be written: %s", strerror(errno));
}

/* events_forget takes back the events of an object that is being destroyed, or all when element is NULL. */
void events_forget(struct events *q, const void *element)
{
	for (struct event **p = &q->first; *p;) {
		struct event *e = *p;
		if (element && e->element != element) {
			p = &e->next;
			continue;
		}
		*p = e->next;
		if (q->last == &e->next)
			q->last = p;
		free(e);
		uint64_t one;
		if (read(q->fd, &one, sizeof(one)) != sizeof(one))
			fake_violation("an event descriptor cannot be read: %s", strerror(errno));
	}
}

/* events_get waits for an event, as the descriptor's mode says, and must be called without the lock. It returns with the lock
 * held when it is true. The count of the descriptor is read under the lock only, so it is that of the queue. */
bool events_get(struct events *q, struct event *out, int *err)
{
	int mode = fcntl(q->fd, F_GETFL);
	if (mode < 0) {
		*err = errno;
		return false;
	}
	for (;;) {
		lock();
		struct event *e = q->first;
		if (e) {
			uint64_t one;
			if (read(q->fd, &one, sizeof(one)) != sizeof(one))
				fake_violation("an event descriptor cannot be read: %s", strerror(errno));
			q->first = e->next;
			if (!q->first)
				q->last = &q->first;
			*out = *e;
			free(e);
			return true;
		}
		unlock();
		if (mode & O_NONBLOCK) {
			*err = EAGAIN;
			return false;
		}
		struct pollfd pf = {.fd = q->fd, .events = POLLIN};
		if (poll(&pf, 1, -1) < 0) {
			*err = errno;
			return false;
		}
	}
}

/* fake_async reports an event to the user of one context. element is the queue pair, completion queue or SRQ; a port event
 * has none. */
void fake_async(struct fake_context *ctx, void *element, enum ibv_event_type type)
{
	struct ibv_async_event ev = {.event_type = type};
	if (element)
		ev.element.qp = element;
	else
		ev.element.port_num = 1;
	events_put(&ctx->async, element, &ev);
}

/* fake_wait_acks waits, without the lock held, until as many events are acknowledged as were delivered. The real library waits
 * for ever; here a program that never acknowledges is told so after five seconds. */
bool fake_wait_acks(pthread_mutex_t *m, pthread_cond_t *c, uint32_t *acked, const unsigned *want, const char *what)
{
	struct timespec until;
	int err = 0;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 5;
	pthread_mutex_lock(m);
	while (*acked != *want && err == 0)
		err = pthread_cond_timedwait(c, m, &until);
	bool ok = *acked == *want;
	unsigned missing = *want - *acked;
	pthread_mutex_unlock(m);
	if (!ok) {
		lock();
		fake_violation("%s: %u events were delivered and never acknowledged; the real library waits here for ever", what, missing);
		unlock();
	}
	return ok;
}

/* ---- report */

static char *report_text;

/* penstock_fake_report lists what is wrong now: "violation ..." for each rule broken so far and "leak KIND #N of DEVICE" for each
 * object that is not destroyed, a line each; the empty string when there is nothing. The text belongs to the fake and is valid
 * until the next call. */
EXPORT const char *penstock_fake_report(void)
{
	char *text = NULL;
	size_t len = 0;
	lock();
	FILE *f = open_memstream(&text, &len);
	if (!f) {
		unlock();
		return "violation: out of memory\n";
	}
	for (int i = 0; i < violations_len; i++)
		fprintf(f, "violation %s\n", violations[i]);
	if (violations_all > (uint64_t)violations_len)
		fprintf(f, "violation and %llu more\n", (unsigned long long)(violations_all - (uint64_t)violations_len));
	for (int k = 0; k < KINDS; k++)
		for (struct obj *o = objects[k]; o; o = o->next)
			fprintf(f, "leak %s #%llu of %s\n", kind_names[k], (unsigned long long)o->serial, o->ctx ? o->ctx->dev->ibv.name : "the process");
	fclose(f);
	free(report_text);
	report_text = text;
	unlock();
	return text;
}

__attribute__((destructor)) static void finish(void)
{
	if (config.report) {
		const char *r = penstock_fake_report();
		fprintf(stderr, "penstock fake verbs report:\n%s", *r ? r : "clean\n");
	}
	free(report_text);
	report_text = NULL;
	fake_clear_violations();
	while (grave_first) {
		struct obj *o = grave_first;
		grave_first = o->next;
		free(o->memory);
	}
	grave_last = &grave_first;
	for (int i = 0; i < MAX_DEVICES; i++)
		if (!objects[K_CONTEXT]) {
			free(devices[i].qps);
			devices[i].qps = NULL;
		}
}
