// A stream over TLS 1.3 with AES-128-GCM between two processes, as one writes it with OpenSSL: SSL_write and SSL_read on
// blocking sockets. The receiver looks at every byte of the last message in each of its buffers, outside the timed part.
//
//	stream server PORT CPU
//	stream client PORT CPU SIZE MESSAGES SLOTS CHUNK CONGESTION
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	ERR_print_errors_fp(stderr);
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void pin(const char *cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(atoi(cpu), &set);
	if (sched_setaffinity(0, sizeof set, &set))
		fail("sched_setaffinity");
}

static void put(SSL *s, const char *b, size_t n, size_t chunk)
{
	while (n > 0) {
		size_t k = n < chunk ? n : chunk, done;
		if (SSL_write_ex(s, b, k, &done) != 1)
			fail("SSL_write");
		b += done, n -= done;
	}
}

static void get(SSL *s, char *b, size_t n, size_t chunk)
{
	while (n > 0) {
		size_t k = n < chunk ? n : chunk, done;
		if (SSL_read_ex(s, b, k, &done) != 1)
			fail("SSL_read");
		b += done, n -= done;
	}
}

static uint64_t word(uint64_t slot, uint64_t i) { return (slot + 1) * 0x9e3779b97f4a7c15u ^ i * 0xd6e8feb86659fd93u; }

static char *memory(size_t n)
{
	char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (p == MAP_FAILED)
		fail("mmap");
	return p;
}

// One message: its first word is its number, the others are a pattern of the slot.
struct job {
	uint64_t size, messages, slots, chunk;
};

static void identify(SSL_CTX *c) // a key and a certificate of the moment; the client does not ask who it is
{
	EVP_PKEY *key = EVP_EC_gen("P-256");
	X509 *x = X509_new();
	if (!key || !x || !ASN1_INTEGER_set(X509_get_serialNumber(x), 1) || !X509_gmtime_adj(X509_getm_notBefore(x), 0) ||
	    !X509_gmtime_adj(X509_getm_notAfter(x), 3600) || !X509_set_pubkey(x, key) || !X509_sign(x, key, EVP_sha256()) ||
	    SSL_CTX_use_certificate(c, x) != 1 || SSL_CTX_use_PrivateKey(c, key) != 1)
		fail("certificate");
	X509_free(x);
	EVP_PKEY_free(key);
}

static void server(int port)
{
	SSL_CTX *c = SSL_CTX_new(TLS_server_method());
	int l = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (!c || l < 0)
		fail("server");
	identify(c);
	SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION);
	SSL_CTX_set_num_tickets(c, 0);
	SSL_CTX_set_read_ahead(c, 1);
	SSL_CTX_set_default_read_buffer_len(c, 128 << 10);
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(l, (void *)&a, sizeof a) || listen(l, 1))
		fail("listen");
	int fd = accept(l, NULL, NULL);
	if (fd < 0)
		fail("accept");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	SSL *s = SSL_new(c);
	if (!s || SSL_set_fd(s, fd) != 1 || SSL_accept(s) != 1)
		fail("SSL_accept");
	struct job j;
	get(s, (char *)&j, sizeof j, sizeof j);
	char *b = memory(j.size * j.slots);
	for (uint64_t part = 0; part < 2; part++) { // the first is a tenth, to warm up
		uint64_t n = part ? j.messages : (j.messages + 9) / 10;
		for (uint64_t i = 0; i < n; i++)
			get(s, b + i % j.slots * j.size, j.size, j.chunk);
		put(s, "d", 1, 1);
		int good = 1;
		for (uint64_t slot = 0; slot < j.slots && slot < n; slot++) {
			uint64_t *w = (uint64_t *)(b + slot * j.size);
			uint64_t last = (n - 1 - slot) / j.slots * j.slots + slot;
			good &= w[0] == (last | part << 63);
			for (uint64_t k = 1; k < j.size / 8; k++)
				good &= w[k] == word(slot, k);
		}
		put(s, good ? "y" : "n", 1, 1);
	}
	SSL_shutdown(s);
}

static void client(int port, struct job j, const char *congestion)
{
	SSL_CTX *c = SSL_CTX_new(TLS_client_method());
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (!c || fd < 0)
		fail("client");
	if (*congestion && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, strlen(congestion)))
		fail(congestion);
	SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION);
	if (SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256") != 1 || connect(fd, (void *)&a, sizeof a))
		fail("connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	SSL *s = SSL_new(c);
	if (!s || SSL_set_fd(s, fd) != 1 || SSL_connect(s) != 1)
		fail("SSL_connect");
	char *b = memory(j.size * j.slots);
	for (uint64_t slot = 0; slot < j.slots; slot++)
		for (uint64_t k = 1; k < j.size / 8; k++)
			((uint64_t *)(b + slot * j.size))[k] = word(slot, k);
	put(s, (char *)&j, sizeof j, sizeof j);
	double took = 0;
	for (uint64_t part = 0; part < 2; part++) {
		uint64_t n = part ? j.messages : (j.messages + 9) / 10;
		double begin = now();
		char answer;
		for (uint64_t i = 0; i < n; i++) {
			char *m = b + i % j.slots * j.size;
			*(uint64_t *)m = i | part << 63;
			put(s, m, j.size, j.chunk);
		}
		get(s, &answer, 1, 1);
		took = now() - begin;
		get(s, &answer, 1, 1);
		if (answer != 'y') {
			fprintf(stderr, "the receiver found wrong bytes\n");
			exit(1);
		}
	}
	printf("{\"gbps\":%.6f,\"bytes\":%llu,\"cipher\":\"%s\",\"protocol\":\"%s\"}\n", j.size * j.messages / took / 1e9,
	       (unsigned long long)(j.size * j.messages), SSL_get_cipher(s), SSL_get_version(s));
}

int main(int n, char **v)
{
	if (n == 4 && !strcmp(v[1], "server")) {
		pin(v[3]);
		server(atoi(v[2]));
		return 0;
	}
	if (n == 9 && !strcmp(v[1], "client")) {
		struct job j = {strtoull(v[4], 0, 0), strtoull(v[5], 0, 0), strtoull(v[6], 0, 0), strtoull(v[7], 0, 0)};
		pin(v[3]);
		if (j.size < 8 || j.size % 8 || !j.messages || !j.slots || !j.chunk)
			return 2;
		client(atoi(v[2]), j, v[8]);
		return 0;
	}
	return 2;
}
