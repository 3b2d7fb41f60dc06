/* Two systems of one process: every call that moves bytes, and what is refused. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "penstock.h"

#define CHECK(x) do { if (!(x)) { printf("%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #x, e.code, e.text); exit(1); } } while (0)
#define REFUSED(x, want) do { memset(&e, 0, sizeof e); (void)(x); if (e.code != (want) || !e.text[0]) { printf("%s:%d: %s: %d (%s), expected %d\n", __FILE__, __LINE__, #x, e.code, e.text, (want)); exit(1); } } while (0)

enum { SIZE = 1 << 20, BLOCKS = 64, BLOCK = 4096, THREADS = 4, ROUNDS = 50 };

static penstock_handle peer, src, remote;

static void *worker(void *arg)
{
	penstock_error e = {0};
	uint64_t at = (uint64_t)(size_t)arg * BLOCK;
	penstock_block b = {src, at, BLOCK, remote, at};
	for (int i = 0; i < ROUNDS; i++) {
		penstock_handle t = penstock_post(peer, PENSTOCK_PUT, &b, 1, NULL, &e);
		CHECK(t && penstock_wait(t, 10000, &e) == 0 && penstock_close(t, &e) == 0);
	}
	return NULL;
}

/* moved is how a transfer of one block ends, whether it is refused at once or later. */
static void moved(int kind, const penstock_block *b, penstock_error *e)
{
	penstock_handle t = penstock_post(peer, kind, b, 1, NULL, e);
	if (t) {
		penstock_wait(t, 10000, e);
		penstock_close(t, NULL);
	}
}

int main(void)
{
	penstock_error e = {0};
	CHECK(penstock_abi() == PENSTOCK_ABI);
	REFUSED(penstock_open("penstock: {transfers: {listen: [nonsense]}}", &e), PENSTOCK_INVALID);
	penstock_handle a = penstock_open("penstock: {transfers: {name: a}}", &e);
	penstock_handle b = penstock_open("penstock: {transfers: {name: b, listen: ['tcp://127.0.0.1:0']}}", &e);
	CHECK(a && b);
	char address[256], text[4096];
	CHECK(penstock_addresses(b, address, sizeof address, &e) > 0);

	/* Memory: ours on one side, the caller's on the other. */
	uint64_t size = 0;
	src = penstock_alloc("source", SIZE, 0, &e);
	CHECK(src);
	unsigned char *from = penstock_memory(src, &size, &e), *to = calloc(1, SIZE);
	CHECK(from && size == SIZE);
	for (int i = 0; i < SIZE; i++)
		from[i] = (unsigned char)(i * 7 + i / 4096);
	penstock_handle dst = penstock_adopt("destination", to, SIZE, &e);
	penstock_handle x = penstock_export(b, dst, 0, SIZE, "dst", PENSTOCK_READ | PENSTOCK_WRITE, 0, &e);
	CHECK(dst && x && penstock_subscribe(b, 7, &e) == 0);

	uint32_t rights = 0;
	peer = penstock_dial(a, address, 10000, &e);
	CHECK(peer);
	remote = penstock_lookup(peer, "dst", 10000, &size, &rights, &e);
	CHECK(remote && size == SIZE && rights == (PENSTOCK_READ | PENSTOCK_WRITE));

	/* A put with a message and an event. */
	penstock_block all = {src, 0, SIZE, remote, 0};
	penstock_options o = {.message = "done", .message_size = 4, .tag = 7, .digest = 1};
	penstock_handle t = penstock_post(peer, PENSTOCK_PUT, &all, 1, &o, &e);
	CHECK(t && penstock_watch(t, &e) == 0 && penstock_wait(t, 10000, &e) == 0 && penstock_progress(t) == 1);
	CHECK(memcmp(from, to, SIZE) == 0);
	CHECK(penstock_explain(t, text, sizeof text, &e) > 0 && strstr(text, "tcp"));
	struct pollfd p = {penstock_event_fd(a, &e), POLLIN, 0};
	penstock_handle ended[4];
	CHECK(poll(&p, 1, 10000) == 1 && penstock_ended(a, ended, 4, &e) == 1 && ended[0] == t);
	CHECK(poll(&p, 1, 0) == 0 && penstock_ended(a, ended, 4, &e) == 0);
	CHECK(penstock_cancel(t, &e) == 0 && penstock_close(t, &e) == 0);
	penstock_message m;
	char room[16] = {0};
	CHECK(penstock_receive(b, &m, room, sizeof room, 10000, &e) == 1);
	CHECK(m.tag == 7 && m.size == 4 && m.bytes == SIZE && memcmp(room, "done", 4) == 0 && strcmp(m.peer, "a") == 0);
	CHECK(penstock_receive(b, &m, room, sizeof room, 0, &e) == 0);
	CHECK((t = penstock_notify(peer, &o, &e)) && penstock_wait(t, 10000, &e) == 0 && penstock_close(t, &e) == 0);
	CHECK(penstock_receive(b, &m, NULL, 0, 10000, &e) == 1 && m.bytes == 0);

	/* Messages that nobody receives: their bytes are bounded here, and the sender hears of it. */
	static char large[1 << 20];
	penstock_options much = {.message = large, .message_size = sizeof large, .tag = 7};
	int sent = 0;
	for (e.code = 0; e.code == 0 && sent < 64; sent += e.code == 0) {
		t = penstock_notify(peer, &much, &e);
		if (t) {
			penstock_wait(t, 10000, &e);
			CHECK(penstock_close(t, NULL) == 0);
		}
	}
	CHECK(e.code == PENSTOCK_FULL && e.retriable && sent >= 16);
	for (e.code = 0; sent > 0; sent--)
		CHECK(penstock_receive(b, &m, NULL, 0, 10000, &e) == 1 && m.size == sizeof large);

	/* A list, put once and got back prepared, many times. */
	penstock_handle back = penstock_alloc("back", BLOCKS * BLOCK, 0, &e);
	unsigned char *got = penstock_memory(back, NULL, &e);
	penstock_block list[BLOCKS];
	for (int i = 0; i < BLOCKS; i++)
		list[i] = (penstock_block){back, (uint64_t)(BLOCKS - 1 - i) * BLOCK, BLOCK, remote, (uint64_t)i * BLOCK};
	penstock_handle l = penstock_prepare(peer, PENSTOCK_GET, list, BLOCKS, NULL, &e);
	CHECK(l);
	for (int i = 0; i < 20; i++) {
		memset(got, 0, BLOCKS * BLOCK);
		CHECK((t = penstock_repost(l, &e)) && penstock_wait(t, 10000, &e) == 0 && penstock_close(t, &e) == 0);
		for (int k = 0; k < BLOCKS; k++)
			CHECK(memcmp(got + (BLOCKS - 1 - k) * BLOCK, to + k * BLOCK, BLOCK) == 0);
	}
	CHECK(penstock_close(l, &e) == 0);
	t = penstock_repost(l, &e); /* by the agent what is wrong is said by the wait */
	CHECK((t ? penstock_wait(t, 10000, &e) : e.code) == PENSTOCK_INVALID && strstr(e.text, "not open"));
	CHECK(!t || (penstock_progress(t) < 0 && penstock_close(t, NULL) == 0));
	e.code = 0;

	/* Threads. */
	memset(to, 0, SIZE);
	pthread_t threads[THREADS];
	for (size_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, worker, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	CHECK(memcmp(from, to, THREADS * BLOCK) == 0);

	/* A part of a slab over shared memory. */
	penstock_handle slab = penstock_alloc("slab", 4 * BLOCK, 0, &e);
	penstock_handle part = penstock_export(b, slab, BLOCK, BLOCK, "part", PENSTOCK_WRITE, PENSTOCK_WHOLE_REGION, &e);
	penstock_handle rp = penstock_lookup(peer, "part", 10000, NULL, NULL, &e);
	penstock_block one = {src, 0, BLOCK, rp, 0};
	penstock_options shm = {.paths = "shm"};
	CHECK(slab && part && rp && (t = penstock_post(peer, PENSTOCK_PUT, &one, 1, &shm, &e)) && penstock_wait(t, 10000, &e) == 0);
	CHECK(memcmp((unsigned char *)penstock_memory(slab, NULL, &e) + BLOCK, from, BLOCK) == 0);

	/* A tensor says what it is; what is no tensor does not. */
	penstock_tensor what = {.dtype = "bf16", .rank = 2, .shape = {3, 5}}, said;
	penstock_handle tensor = penstock_publish(b, slab, BLOCK, &what, "tensor", PENSTOCK_READ, 0, &e);
	penstock_handle rt = penstock_lookup(peer, "tensor", 10000, &size, &rights, &e);
	CHECK(tensor && rt && size == 2 * 3 * 5 && rights == PENSTOCK_READ);
	memset(&said, 1, sizeof said);
	CHECK(penstock_describe(rt, &said, &e) == 1 && memcmp(&said, &what, sizeof what) == 0);
	CHECK(penstock_describe(rp, &said, &e) == 0 && e.code == 0);
	/* Memory of the caller, for one transfer. */
	unsigned char *mine = malloc(BLOCK), *theirs = malloc(BLOCK);
	memset(mine, 0x5a, BLOCK);
	penstock_handle out = penstock_post_memory(peer, PENSTOCK_PUT, mine, BLOCK, rp, 0, NULL, &e);
	CHECK(out && penstock_wait(out, 10000, &e) == 0 && penstock_close(out, &e) == 0);
	out = penstock_post_memory(peer, PENSTOCK_PUT, mine, BLOCK, remote, 3 * BLOCK, NULL, &e);
	CHECK(out && penstock_close(out, &e) == 0); /* which waits until nothing uses it */
	free(mine);
	out = penstock_post_memory(peer, PENSTOCK_GET, theirs, BLOCK, remote, 3 * BLOCK, NULL, &e);
	CHECK(out && penstock_wait(out, 10000, &e) == 0 && penstock_close(out, &e) == 0 && theirs[0] == 0x5a && memcmp(theirs, theirs + 1, BLOCK - 1) == 0);
	REFUSED(penstock_post_memory(peer, PENSTOCK_PUT, NULL, BLOCK, remote, 0, NULL, &e), PENSTOCK_INVALID);
	REFUSED(penstock_post_memory(peer, 3, theirs, BLOCK, remote, 0, NULL, &e), PENSTOCK_INVALID);
	REFUSED(penstock_post_memory(peer, PENSTOCK_PUT, theirs, BLOCK, peer, 0, NULL, &e), PENSTOCK_INVALID);
	REFUSED(penstock_post_memory(remote, PENSTOCK_PUT, theirs, BLOCK, remote, 0, NULL, &e), PENSTOCK_INVALID);
	e.code = 0;

	/* A tensor without elements: of no memory, and of some. */
	unsigned char *where[] = {NULL, theirs};
	for (int i = 0; i < 2; i++) {
		penstock_tensor no_rows = {.dtype = "f32", .rank = 2, .shape = {0, 3}};
		penstock_handle empty = penstock_adopt("empty", where[i], 0, &e);
		CHECK(empty && !penstock_memory(empty, &size, &e) && size == 0 && e.code == 0);
		penstock_handle published = penstock_publish(b, empty, 0, &no_rows, "empty", PENSTOCK_READ | PENSTOCK_WRITE, 0, &e);
		penstock_handle re = penstock_lookup(peer, "empty", 10000, &size, NULL, &e);
		CHECK(published && re && size == 0 && penstock_describe(re, &said, &e) == 1 && memcmp(&said, &no_rows, sizeof said) == 0);
		penstock_block none_of_it = {empty, 0, 0, re, 0}, too_much = {src, 0, 1, re, 0};
		for (int32_t k = PENSTOCK_PUT; k <= PENSTOCK_GET; k++) {
			out = penstock_post_memory(peer, k, where[i], 0, re, 0, NULL, &e);
			CHECK(out && penstock_wait(out, 10000, &e) == 0 && penstock_progress(out) == 1 && penstock_close(out, &e) == 0);
			out = penstock_post(peer, k, &none_of_it, 1, NULL, &e);
			CHECK(out && penstock_wait(out, 10000, &e) == 0 && penstock_close(out, &e) == 0);
			REFUSED(moved(k, &too_much, &e), PENSTOCK_BOUNDS);
			e.code = 0;
		}
		CHECK(penstock_close(re, &e) == 0 && penstock_close(published, &e) == 0 && penstock_close(empty, &e) == 0);
	}
	free(theirs);

	/* What the peer exports. */
	penstock_entry entries[3];
	penstock_handle some = penstock_list(peer, "t", 10000, &e), none = penstock_list(peer, "nothing", 10000, &e), every = penstock_list(peer, NULL, 10000, &e);
	CHECK(some && penstock_entries(some, entries, 3, &e) == 1 && penstock_entries(some, entries + 1, 1, &e) == 0);
	CHECK(strcmp(entries[0].name, "tensor") == 0 && entries[0].size == 30 && entries[0].rights == PENSTOCK_READ && entries[0].described == 1);
	CHECK(memcmp(&entries[0].what, &what, sizeof what) == 0);
	CHECK(none && penstock_entries(none, entries, 3, &e) == 0 && penstock_close(none, &e) == 0);
	size_t listed = 0;
	char before[64] = "";
	while (penstock_entries(every, entries, 1, &e) == 1) {
		CHECK(strcmp(before, entries[0].name) < 0 && strlen(entries[0].name) < sizeof before);
		strcpy(before, entries[0].name);
		CHECK(strcmp(before, "dst") != 0 || (entries[0].size == SIZE && entries[0].rights == (PENSTOCK_READ | PENSTOCK_WRITE) && entries[0].described == 0));
		listed++;
	}
	CHECK(every && e.code == 0 && listed >= 2 && strcmp(before, "tensor") == 0 && penstock_close(some, &e) == 0 && penstock_close(every, &e) == 0);
	REFUSED(penstock_entries(some, entries, 1, &e), PENSTOCK_INVALID);
	REFUSED(penstock_entries(peer, entries, 1, &e), PENSTOCK_INVALID);
	REFUSED(penstock_list(some, "", 10000, &e), PENSTOCK_INVALID);
	e.code = 0;
	what.shape[1] = -1;
	REFUSED(penstock_publish(b, slab, 0, &what, "bad", PENSTOCK_READ, 0, &e), PENSTOCK_INVALID);
	what.rank = 33;
	REFUSED(penstock_publish(b, slab, 0, &what, "bad", PENSTOCK_READ, 0, &e), PENSTOCK_INVALID);
	memset(what.dtype, 'x', sizeof what.dtype), what.rank = 0;
	REFUSED(penstock_publish(b, slab, 0, &what, "bad", PENSTOCK_READ, 0, &e), PENSTOCK_INVALID);
	REFUSED(penstock_publish(b, slab, 0, NULL, "bad", PENSTOCK_READ, 0, &e), PENSTOCK_INVALID);
	what = (penstock_tensor){.dtype = "u8", .rank = 1, .shape = {4 * BLOCK + 1}};
	REFUSED(penstock_publish(b, slab, 0, &what, "bad", PENSTOCK_READ, 0, &e), PENSTOCK_BOUNDS);

	/* A directory. */
	char dir[] = "/tmp/penstock-capi-XXXXXX", file[64];
	CHECK(mkdtemp(dir));
	snprintf(file, sizeof file, "%s/words", dir);
	FILE *f = fopen(file, "w");
	CHECK(f && fputs("served", f) > 0 && fclose(f) == 0);
	penstock_handle share = penstock_serve(b, dir, PENSTOCK_TENSORS, &e);
	penstock_handle words = penstock_lookup(peer, "words", 10000, &size, &rights, &e);
	CHECK(share && words && size == 6 && rights == PENSTOCK_READ);
	REFUSED(penstock_serve(b, dir, 0, &e), PENSTOCK_OTHER); /* one share at a time */
	REFUSED(penstock_serve(b, dir, 2, &e), PENSTOCK_INVALID);
	REFUSED(penstock_serve(b, "/nowhere/at/all", 0, &e), PENSTOCK_OTHER);
	CHECK(penstock_close(share, &e) == 0);
	REFUSED(penstock_lookup(peer, "words", 10000, NULL, NULL, &e), PENSTOCK_NOT_FOUND);
	CHECK((share = penstock_serve(b, file, 0, &e))); /* it goes with its system */
	CHECK(penstock_lookup(peer, "words", 10000, NULL, NULL, &e));

	/* What is refused. */
	penstock_block bad = all;
	bad.remote_offset = 1;
	REFUSED(moved(PENSTOCK_PUT, &bad, &e), PENSTOCK_BOUNDS);
	bad = all, bad.offset = 1;
	REFUSED(moved(PENSTOCK_PUT, &bad, &e), PENSTOCK_BOUNDS);
	bad = all, bad.region = peer;
	REFUSED(moved(PENSTOCK_PUT, &bad, &e), PENSTOCK_INVALID);
	REFUSED(penstock_post(peer, 3, &all, 1, NULL, &e), PENSTOCK_INVALID);
	REFUSED(penstock_post(peer, PENSTOCK_PUT, NULL, 0, NULL, &e), PENSTOCK_INVALID);
	REFUSED(penstock_lookup(peer, "nothing", 10000, NULL, NULL, &e), PENSTOCK_NOT_FOUND);
	REFUSED(penstock_wait(t + 1000, 0, &e), PENSTOCK_INVALID);
	REFUSED(penstock_rx(a, "none", 0, &e), PENSTOCK_OTHER);
	REFUSED(penstock_alloc("none", 0, 0, &e), PENSTOCK_INVALID);
	REFUSED(penstock_adopt("none", NULL, 1, &e), PENSTOCK_INVALID);
	REFUSED(penstock_export(b, dst, 0, SIZE, "dst", PENSTOCK_READ, 0, &e), PENSTOCK_OTHER);
	REFUSED(penstock_dial(a, "tcp://127.0.0.1:1", 10000, &e), PENSTOCK_OTHER);
	one.remote = rp;
	REFUSED(moved(PENSTOCK_GET, &one, &e), PENSTOCK_RIGHTS);

	REFUSED(penstock_close(dst, &e), PENSTOCK_INVALID); /* it is exported */

	/* The end: nothing that was closed is used again, and the caller's memory is the caller's. */
	CHECK(penstock_close(x, &e) == 0);
	REFUSED(moved(PENSTOCK_PUT, &all, &e), PENSTOCK_REVOKED);
	CHECK(penstock_close(dst, &e) == 0);
	free(to);
	REFUSED(penstock_close(dst, &e), PENSTOCK_INVALID);
	CHECK(penstock_close(b, &e) == 0);
	one.remote = rp;
	REFUSED(moved(PENSTOCK_PUT, &one, &e), PENSTOCK_LOST);
	CHECK(penstock_close(share, &e) == 0 && unlink(file) == 0 && rmdir(dir) == 0);
	CHECK(penstock_close(a, &e) == 0 && penstock_close(src, &e) == 0 && penstock_close(back, &e) == 0 && penstock_close(slab, &e) == 0);
	puts("ok");
	return 0;
}
