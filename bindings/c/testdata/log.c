/* What systems log, taken by C: before the first call, records in order, too little room, the gap of those that were dropped, the end. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "penstock.h"

#define CHECK(x) do { if (!(x)) { printf("%s:%d: %s: %d: %s\n%s\n", __FILE__, __LINE__, #x, e.code, e.text, line); exit(1); } } while (0)

static penstock_error e;
static char line[65536];
static const char *yaml = "penstock: {logging: {level: info}, transfers: {name: logged}}";

/* next takes one record, which has both texts. */
static void next(int64_t timeout, const char *one, const char *other)
{
	int64_t n = penstock_log(line, sizeof line, timeout, &e);
	CHECK(n > 0 && n == (int64_t)strlen(line) && line[0] == '{' && line[n - 1] == '}');
	CHECK(strstr(line, one) && strstr(line, other));
}

static void *waiter(void *got)
{
	penstock_error mine = {0};
	char small[4096];
	*(int64_t *)got = penstock_log(small, sizeof small, -1, &mine);
	return NULL;
}

int main(void)
{
	CHECK(penstock_log(NULL, 0, 0, &e) == 0);  /* records are kept from here on */
	CHECK(penstock_log(NULL, 0, -1, &e) == 0); /* no system is open: nothing to wait for */
	penstock_handle s = penstock_open(yaml, &e);
	CHECK(s);
	int64_t whole = penstock_log(line, 10, 0, &e);
	CHECK(whole > 10 && strlen(line) == 9);
	next(0, "\"level\":0,\"msg\":\"open\"", "\"attributes\":{\"system\":\"logged\",");
	CHECK(whole == (int64_t)strlen(line));
	CHECK(penstock_log(line, sizeof line, 1, &e) == 0);

	pthread_t t;
	int64_t got = -1;
	CHECK(pthread_create(&t, NULL, waiter, &got) == 0); /* has the record of the close */
	CHECK(penstock_close(s, &e) == 0);
	pthread_join(t, NULL);
	CHECK(got > 0);
	CHECK(pthread_create(&t, NULL, waiter, &got) == 0); /* the end: no system is open */
	pthread_join(t, NULL);
	CHECK(got == 0);

	enum { SYSTEMS = 900 };
	for (int i = 0; i < SYSTEMS; i++) { /* two records each */
		CHECK((s = penstock_open("penstock: {logging: {level: info}}", &e)));
		CHECK(penstock_close(s, &e) == 0);
	}
	int64_t n, taken = 0, dropped = 0, bytes = 0;
	while ((n = penstock_log(line, sizeof line, -1, &e)) > 0) {
		const char *gap = strstr(line, "were dropped");
		if (gap) {
			CHECK(dropped == 0 && strstr(line, "\"level\":4"));
			dropped = strtoll(strstr(gap, "\"records\":") + strlen("\"records\":"), NULL, 10);
		} else
			taken++;
		bytes += n;
	}
	CHECK(n == 0 && taken > 400 && dropped > 0 && taken + dropped == 2 * SYSTEMS && bytes < 256 << 10);

	CHECK((s = penstock_open("penstock: {logging: {level: 'off'}}", &e)));
	CHECK(penstock_close(s, &e) == 0);
	CHECK(penstock_log(line, sizeof line, -1, &e) == 0);
	CHECK(!penstock_open("penstock: {transfers: {name: x, listen: ['tcp://256.0.0.1:1']}}", &e));
	CHECK(penstock_log(line, sizeof line, -1, &e) == 0); /* what was not opened is not waited for */
	puts("ok");
	return 0;
}
