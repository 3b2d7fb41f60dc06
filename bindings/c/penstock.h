/*
 * Penstock for C: memory, transfers and streams of packets. Link with -lpenstock (make capi; pkg-config penstock).
 *
 * Handles are numbers. 0 is none, and a number is never used again: a call with a handle that was closed, or of another kind, fails with
 * PENSTOCK_INVALID. Calls may come from any thread, unless a call says otherwise.
 *
 * A call that fails returns a negative code, or the handle 0, and fills in the penstock_error, which belongs to the caller and may be NULL.
 *
 * Times are in milliseconds; a negative one is without a limit. Text is UTF-8 and ends with a zero byte. A call that returns text writes at
 * most n bytes, the zero byte among them, and returns the length of the whole text, so that a caller with too little room can ask again.
 *
 * libpenstock.so contains the Go runtime. It does not survive fork: a child has to call exec. libpenstock-agent.so has the same functions without one: a
 * process beside does the work (docs/c.md, "The agent"), and a child of a fork restarts. No call ends the process.
 */
#ifndef PENSTOCK_H
#define PENSTOCK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PENSTOCK_ABI 1

typedef uint64_t penstock_handle;

enum {
	PENSTOCK_OK = 0,
	PENSTOCK_OTHER = -1,       /* see the text */
	PENSTOCK_INVALID = -2,     /* an argument, a handle or a configuration */
	PENSTOCK_TIMEOUT = -3,     /* the time is over, and what was waited for goes on */
	PENSTOCK_CANCELED = -4,    /* by penstock_cancel */
	PENSTOCK_CLOSED = -5,      /* by this side */
	PENSTOCK_LOST = -6,        /* the peer is gone */
	PENSTOCK_NOT_FOUND = -7,   /* the peer exports no such name */
	PENSTOCK_RIGHTS = -8,      /* not permitted */
	PENSTOCK_REVOKED = -9,     /* the peer took the export back */
	PENSTOCK_BOUNDS = -10,     /* beyond an export or a region */
	PENSTOCK_UNREACHABLE = -11,/* no path reaches the memory or the peer */
	PENSTOCK_INTEGRITY = -12,  /* the bytes are not those that were sent */
	PENSTOCK_FULL = -13,       /* no room now */
	PENSTOCK_MISSING = -14     /* the machine or this build does not have it */
};

typedef struct {
	int32_t code;       /* PENSTOCK_OTHER ... */
	int32_t retriable;  /* 1: the same call may succeed later */
	char text[1016];    /* for people */
} penstock_error;

/* One block of a transfer: local bytes and where they are in the peer's export. */
typedef struct {
	penstock_handle region; /* local */
	uint64_t offset;        /* in it */
	uint64_t length;        /* bytes */
	penstock_handle remote; /* of penstock_lookup */
	uint64_t remote_offset;
} penstock_block;

/* How blocks are moved. All zero is usual. The library copies what it points to. */
typedef struct {
	const void *message;   /* delivered with the completion, or NULL */
	uint32_t message_size; /* bytes */
	uint32_t tag;          /* who gets the message: see penstock_subscribe */
	const char *paths;     /* allowed ones, with commas between, such as "shm,tcp"; NULL: all */
	uint32_t digest;       /* 1: SHA-256 end to end */
	uint32_t reserved;     /* 0 */
} penstock_options;

typedef struct {
	uint32_t tag;
	uint32_t size;      /* bytes of the message; more than the caller's room: it was cut */
	uint64_t bytes;     /* that the transfer moved */
	char peer[256];     /* its name */
} penstock_message;

/* One segment of a received packet. */
typedef struct {
	const void *data; /* valid until penstock_release */
	uint32_t size;    /* bytes */
	uint32_t packet;  /* its number in the burst, from 0: segments of one packet have the same */
	uint32_t flow;    /* of the rule that matched, or 0 */
	uint32_t timed;   /* 1: time is known */
	int64_t time;     /* of reception, in ns since 1970 */
} penstock_segment;

/* What bytes are: a tensor in row-major order. */
typedef struct {
	char dtype[16];    /* of an element, such as "f32", "bf16", "i64", "bool" */
	uint32_t rank;     /* how many dimensions, 0 to 32 */
	uint32_t reserved; /* 0 */
	int64_t shape[32]; /* the slowest first */
} penstock_tensor;

/* What is known of a batch of a reorder plan, which is received as one packet. */
typedef struct {
	int64_t id;         /* the number of the batch, which goes on where those in packets begin again */
	uint32_t packets;   /* that are there; the places of the others are zero */
	uint32_t per_batch; /* packets that there could be */
	uint32_t timed_out; /* 1: the plan's timeout ended it */
	uint32_t words;     /* of its bitmap */
	int64_t first;      /* the earliest receive time of its packets, in ns since 1970; 0: unknown */
	int64_t last;       /* the latest */
	penstock_tensor what;
} penstock_batch;

/* One export of a peer. */
typedef struct {
	const char *name;    /* valid until penstock_close of the listing */
	uint64_t size;       /* bytes */
	uint32_t rights;     /* PENSTOCK_READ, PENSTOCK_WRITE or both */
	uint32_t described;  /* 1: what is known */
	penstock_tensor what;
} penstock_entry;

/* For penstock_python: functions of CPython, by its names. */
typedef struct {
	int (*initialized)(void);                          /* Py_IsInitialized */
	int (*ensure)(void);                               /* PyGILState_Ensure */
	void (*release)(int);                              /* PyGILState_Release */
	void (*decref)(void *);                            /* Py_DecRef */
	int (*valid)(void *capsule, const char *name);     /* PyCapsule_IsValid */
	void *(*pointer)(void *capsule, const char *name); /* PyCapsule_GetPointer */
} penstock_python_calls;

/* Functions for tensors that Python gives by DLPack, whose manager_ctx is a reference to a Python object. */
typedef struct {
	void (*deleter)(void *);           /* of a DLManagedTensor: drops the reference */
	void (*deleter_versioned)(void *); /* of a DLManagedTensorVersioned */
	void (*destructor)(void *);        /* of a PyCapsule that has one of both: calls its deleter, unless a consumer took it */
} penstock_python_ends;

enum { PENSTOCK_PUT = 1, PENSTOCK_GET = 2 };
enum { PENSTOCK_READ = 1, PENSTOCK_WRITE = 2 };
enum {
	PENSTOCK_HUGE = 1,  /* of penstock_alloc: pages of 2 MiB where there are some free */
	PENSTOCK_PINNED = 2 /* of penstock_alloc: pinned for the CUDA devices, without which it is PENSTOCK_MISSING */
};
enum { PENSTOCK_WHOLE_REGION = 1 }; /* of penstock_export: shared memory may hand over the whole region of a part of it */
enum { PENSTOCK_TENSORS = 1 };      /* of penstock_serve: each tensor of a file has a name of its own, too */

#ifndef PENSTOCK_NO_PROTOTYPES

/* The ABI of the library, which is the PENSTOCK_ABI of the header that it was built with. */
uint32_t penstock_abi(void);

/*
 * Opens what a configuration describes: YAML text as in docs/config.md, such as "penstock: {transfers: {name: a}}". Its applications run until the
 * system is closed. What is not here, and an application that cannot run, is PENSTOCK_MISSING, with the reason.
 */
penstock_handle penstock_open(const char *yaml, penstock_error *);

/*
 * Closes anything that has a handle. A system ends all that was made by it, as of then its calls fail. An export is revoked: afterwards no
 * peer writes to it. Memory that was allocated goes with its last user. Memory that was adopted belongs to the caller again when the call
 * returns: it waits for transfers, and fails while an export or a prepared list uses the memory. A transfer that is under way goes on, without a handle; cancel it to end it. A closed receive queue gives its burst back.
 */
int32_t penstock_close(penstock_handle, penstock_error *);

/*
 * Takes the oldest record of what systems log, as a JSON object of one line: time in ns since 1970, level as a number (-4 debug, 0 information, 4
 * warning, 8 error), msg, and attributes, an object. Returns the length of the text; 0: there was none within the time, or there is none and no
 * system is open. A record that is longer than there is room for stays.
 *
 * From the first call on, which may be one without room or time, systems that are opened keep their records here, those of the level of the section
 * logging and above, unless it names a file. Before, and without a call, they write them to the standard error. 256 KiB of them are kept; a
 * record says how many were dropped.
 */
int64_t penstock_log(char *text, size_t n, int64_t timeout, penstock_error *);

/* Where peers reach the system: addresses, one a line. */
int64_t penstock_addresses(penstock_handle system, char *text, size_t n, penstock_error *);

/* What the system knows of itself, as JSON (docs/observability.md). */
int64_t penstock_status(penstock_handle system, char *text, size_t n, penstock_error *);

/* Makes a region that peers on this host can map. The size is rounded up to pages. It does not belong to a system, and outlives them. */
penstock_handle penstock_alloc(const char *name, uint64_t size, uint32_t flags, penstock_error *);

/*
 * Makes a region of the caller's memory, which stays there until penstock_close of the region returns. Peers reach it over sockets. Memory of a
 * CUDA device is known by its address, and is copied by way of memory of the host: the caller first waits for the kernels that use it. Memory of
 * 0 bytes, such as that of a tensor without elements, needs no address.
 */
penstock_handle penstock_adopt(const char *name, void *memory, uint64_t size, penstock_error *);

/* The memory of a region, and its size; valid until it is closed. NULL without an error: it is on a device, or has no bytes. */
void *penstock_memory(penstock_handle region, uint64_t *size, penstock_error *);

/*
 * Whether an RDMA adapter of this machine reaches the memory of a region itself, so that its bytes move without a copy in memory of the host. 1: one
 * does, and the text says which and how. 0: none does, and the text says why not. A text that is longer than the room is cut.
 */
int32_t penstock_dma(penstock_handle region, char *text, size_t n, penstock_error *);

/*
 * Memory of a CUDA device with the signatures of PyTorch's CUDAPluggableAllocator: each allocation is one of the driver's own in multiples of 2 MiB, so that it can be
 * given to other processes, the agent and RDMA adapters without what lies beside it. The stream is not used: the driver waits for all of them before it
 * frees. Errors go to the standard error, and NULL is returned: PyTorch takes no other.
 */
void *penstock_cuda_alloc(int64_t size, int device, void *stream);
void penstock_cuda_free(void *memory, int64_t size, int device, void *stream);

/* Lets peers name a part of a region. rights is PENSTOCK_READ, PENSTOCK_WRITE or both. A name is "" or unique in the system. */
penstock_handle penstock_export(penstock_handle system, penstock_handle region, uint64_t offset, uint64_t length, const char *name,
	uint32_t rights, uint32_t flags, penstock_error *);

/* As penstock_export, of a tensor, which says how long the part is. Peers learn its type and shape. */
penstock_handle penstock_publish(penstock_handle system, penstock_handle region, uint64_t offset, const penstock_tensor *, const char *name,
	uint32_t rights, uint32_t flags, penstock_error *);

/*
 * Exports a file, or each file of a directory and below, for reading under its path relative to the directory, until penstock_close of the
 * share or of its system. With PENSTOCK_TENSORS each tensor of a safetensors file is FILE/TENSOR, and the array of an npy file FILE/array. The
 * call returns when all files have been looked at; a file that comes or changes later is seen when a peer asks for it, and within seconds in any
 * case, with its tensors. A system has one share.
 */
penstock_handle penstock_serve(penstock_handle system, const char *path, uint32_t flags, penstock_error *);

/* Connects with the node at an address such as tcp://10.0.0.1:7070. */
penstock_handle penstock_dial(penstock_handle system, const char *address, int64_t timeout, penstock_error *);

/* Finds an export of the peer by its name. size and rights may be NULL. */
penstock_handle penstock_lookup(penstock_handle peer, const char *name, int64_t timeout, uint64_t *size, uint32_t *rights, penstock_error *);

/* What the bytes of an export are. 1: a tensor, which is described. 0: the peer does not say. */
int32_t penstock_describe(penstock_handle remote, penstock_tensor *, penstock_error *);

/*
 * Writes the 16 bytes that name the content of an export as it was looked up: another content has another tag, and what belongs together has the same, as a tensor of
 * batches and what is known of them. 1: they were written. 0: the peer does not say.
 */
int32_t penstock_tag(penstock_handle remote, uint8_t *tag, penstock_error *);

/*
 * Asks the peer for its exports whose names begin with a prefix; "" or NULL: all that have a name. The listing is of this moment: it does not
 * change, and the caller closes it.
 */
penstock_handle penstock_list(penstock_handle peer, const char *prefix, int64_t timeout, penstock_error *);

/* The next exports of a listing, n at most, in the order of their names; returns how many. 0: there are no more. */
int64_t penstock_entries(penstock_handle listing, penstock_entry *, size_t n, penstock_error *);

/* Begins a transfer of n blocks and returns its handle, which the caller closes. The blocks are copied; their regions stay open until it has ended. */
penstock_handle penstock_post(penstock_handle peer, int32_t put_or_get, const penstock_block *blocks, size_t n, const penstock_options *, penstock_error *);

/*
 * As penstock_post, of one block of the caller's memory, which is adopted for this transfer: it stays there until penstock_close of the transfer
 * returns, which waits until the transfer does not use it any more.
 */
penstock_handle penstock_post_memory(penstock_handle peer, int32_t put_or_get, void *memory, uint64_t size, penstock_handle remote,
	uint64_t remote_offset, const penstock_options *, penstock_error *);

/* Sends a message of 1 MiB at most. */
penstock_handle penstock_notify(penstock_handle peer, const penstock_options *, penstock_error *);

/*
 * Checks a list of blocks and chooses its path once. penstock_repost begins a transfer of it; the one before has ended by then. With the agent it does not
 * wait for an answer: an error is that of penstock_wait, and of every other call with the transfer.
 */
penstock_handle penstock_prepare(penstock_handle peer, int32_t put_or_get, const penstock_block *blocks, size_t n, const penstock_options *, penstock_error *);
penstock_handle penstock_repost(penstock_handle prepared, penstock_error *);

/* Waits for the end of a transfer. PENSTOCK_OK: all bytes are in place and verified. */
int32_t penstock_wait(penstock_handle transfer, int64_t timeout, penstock_error *);

/* The share of the bytes that are in place, 0 to 1; negative for a handle that is none. */
double penstock_progress(penstock_handle transfer);

/* Ends a transfer early. 1: it will end with PENSTOCK_CANCELED. 0: it has ended before. */
int32_t penstock_cancel(penstock_handle transfer, penstock_error *);

/* Which path the transfer took, why, how long that took, and how often its bytes were copied. */
int64_t penstock_explain(penstock_handle transfer, char *text, size_t n, penstock_error *);

/*
 * A descriptor to poll, an eventfd of the system or, with the agent, an epoll instance, which stays the system's. It is readable from the end of a watched transfer, or the arrival of a message, until
 * penstock_ended has returned less than there was room for and penstock_receive has found nothing.
 */
int32_t penstock_event_fd(penstock_handle system, penstock_error *);

/* Has penstock_ended return the transfer when it has ended, which it may have already: once for all calls before that. */
int32_t penstock_watch(penstock_handle transfer, penstock_error *);

/* Watched transfers that have ended since, n at most; returns how many. The handles stay open. */
int64_t penstock_ended(penstock_handle system, penstock_handle *transfers, size_t n, penstock_error *);

/* Keeps messages with a tag, from 1 on, for penstock_receive: 16, and what the node keeps for each peer. Beyond that their senders wait. */
int32_t penstock_subscribe(penstock_handle system, uint32_t tag, penstock_error *);

/* Takes the next message: its description, and the first bytes of it as far as there is room. 1: there was one, 0: none within the time. */
int32_t penstock_receive(penstock_handle system, penstock_message *, void *room, size_t n, int64_t timeout, penstock_error *);

/* A receive queue of an interface of the configuration, but not one of an application. One thread at a time uses it. */
penstock_handle penstock_rx(penstock_handle system, const char *interface_name, int32_t queue, penstock_error *);

/*
 * Waits for packets and describes their segments, n at most; returns how many. 0: none within the time. The packets belong to the caller
 * until penstock_release, without which the next call fails. A burst with more segments than there is room for is PENSTOCK_FULL and dropped:
 * n of the batch_size of the queue times its segments suffices.
 */
int64_t penstock_burst(penstock_handle rx, penstock_segment *segments, size_t n, int64_t timeout, penstock_error *);

/*
 * Says what is known of the batch that a packet of the last burst is, and writes its bitmap as far as there is room: words words, a bit for each packet that there
 * could be, the lowest of the first word first, 1 where it is there. 1: it is a batch. 0: it is another packet.
 */
int32_t penstock_batch_of(penstock_handle rx, uint32_t packet, penstock_batch *, uint64_t *present, size_t words, penstock_error *);

/* Gives the packets of the last burst back. */
int32_t penstock_release(penstock_handle rx, penstock_error *);

/* Copies n packets into memory of a transmit queue and sends them; returns how many there was room for. */
int64_t penstock_send(penstock_handle system, const char *interface_name, int32_t queue, const penstock_segment *packets, size_t n, penstock_error *);

/*
 * For the Python package, which has no compiler: the ends of tensors that it gives. A consumer may call them without Python's lock, while an
 * exception is under way, or after Python has ended, as no function in Python can be. Returns PENSTOCK_OK, or PENSTOCK_INVALID for a NULL.
 */
int32_t penstock_python(const penstock_python_calls *, penstock_python_ends *);

#endif /* PENSTOCK_NO_PROTOTYPES */

#ifdef __cplusplus
}
#endif
#endif
