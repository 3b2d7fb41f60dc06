/* What the files of libpenstock-agent.so share: requests, answers, and what is known here of a handle. The protocol is that of bindings/agent. */
#ifndef CLIENT_H
#define CLIENT_H

#include <pthread.h>
#include <stdarg.h>

#include "../penstock.h"

#pragma GCC visibility push(hidden)

enum { VERSION = 2, REQUEST_HEADER = 16, ANSWER_HEADER = 32, MAX_BODY = 64 << 20 };

/* The operations, as in bindings/agent/calls.go. */
enum {
	HELLO = 1, OPEN, CLOSE, ADDRESSES, STATUS, LOG, ALLOC, ADOPT, DMA, EXPORT, PUBLISH, DESCRIBE, SERVE, DIAL, LOOKUP, LIST, ENTRIES, POST, POST_MEMORY,
	NOTIFY, PREPARE, REPOST, WAIT, WATCH, PROGRESS, CANCEL, EXPLAIN, EVENT_FD, ENDED, SUBSCRIBE, RECEIVE, RX, BURST, SEND, BATCH, TAG
};

/* A request under construction: the header's room, and the body. */
typedef struct {
	unsigned char *b;
	size_t n, room;
	int full; /* there was no memory, or it would be too long */
	unsigned char first[512];
} request;

void begin(request *, uint32_t op);
void put_bytes(request *, const void *, size_t);
void put_u32(request *, uint32_t);
void put_u64(request *, uint64_t);
void put_data(request *, const void *, size_t); /* with its length before it */
void put_text(request *, const char *);         /* NULL: "" */

/* An answer, whose fields are read in their order. */
typedef struct {
	uint64_t result;
	int fd; /* that came with it, or -1; the reader's */
	unsigned char *b;
	size_t n, at;
	int bad; /* it was too short */
	unsigned char first[512];
} answer;

uint32_t get_u32(answer *);
uint64_t get_u64(answer *);
const unsigned char *get_data(answer *, size_t n); /* NULL: there is less */
void end(answer *);

/* Writes an error and returns its code. */
int32_t fail(penstock_error *, int32_t code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Starts the agent, if there is none. */
int32_t ready(penstock_error *);

/* Whether there is an agent. */
int connected(void);

/* Sends a request and waits for its answer, which the caller ends. On an error there is none. It ends the request in any case. */
int32_t ask(request *, answer *, penstock_error *);

/* Sends a request of 24 bytes that has no answer, at the latest with the next one that has one. */
int32_t tell(request *, penstock_error *);

/* Sends a request for something that the agent makes under a handle that is given here, its last field, and waits for no answer. It ends the request in any case. */
penstock_handle name(request *, penstock_error *);

/* Refuses a handle that is not of the agent of this process. */
int32_t known(penstock_handle, penstock_error *);

/* Notes a handle of the agent: those of the next one are larger. */
void seen(penstock_handle);

/* A descriptor that is readable when event is, and when the agent is lost. */
int watch(int event);
extern pthread_mutex_t events; /* held while a system gets one */

/* device.c: memory of a CUDA device, as the agent opens it. */
typedef struct {
	int is; /* 0: it is the host's */
	unsigned char token[72]; /* the driver's handle of the allocation, and where in it the memory begins */
	char bus[32];            /* PCI address of the device */
} device;

int32_t device_of(const void *memory, uint64_t size, device *, penstock_error *);

/* The caller's memory as a request has it. */
void put_memory(request *, const void *memory, uint64_t size, const device *);

/* start.c: a socket at whose other end an agent is, or will be; -1 with an error. */
int agent_socket(penstock_error *);

/* What is known here of a handle. */
typedef enum { REGION, SYSTEM, LISTING, TRANSFER, QUEUE } kind;

struct chunk {
	struct chunk *next;
	char text[];
};

typedef struct object {
	struct object *next;
	penstock_handle h;
	kind kind;
	unsigned char *memory; /* of a region or queue */
	uint64_t size;
	int mapped;          /* by this library */
	int fd, event;       /* of a system: what says that something has happened, and the agent's eventfd in it; or -1 */
	int over, lends;     /* of a transfer: all is in place; memory of the caller goes with it, which the agent has to give back */
	uint32_t packets;    /* of a queue: the caller has them */
	struct chunk *names; /* of a listing */
} object;

/* Keeps an object for a handle; NULL without memory. */
object *keep(penstock_handle, kind);

/* What is kept for a handle, NULL for nothing. Its fields are those of the thread that uses the handle. */
object *find(penstock_handle);

/* Takes it out. */
object *forget(penstock_handle);

void discard(object *);

#pragma GCC visibility pop
#endif
