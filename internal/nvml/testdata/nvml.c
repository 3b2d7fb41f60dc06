/*
 * A library with the functions of NVML that the package calls, for two cards. OLD leaves out what older ones lack, SHY refuses what some cards do not tell,
 * NODRIVER is a machine whose kernel module is not loaded, LOST one whose card does not answer.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct card { int n; } *device;
static struct card cards[2] = {{0}, {1}};
static int users;

#ifdef SHY
#define TELL(x) return 3
#elif defined(LOST)
#define TELL(x) return 15
#else
#define TELL(x) \
    do { \
        if (users == 0) return 1; \
        x; \
        return 0; \
    } while (0)
#endif

const char *nvmlErrorString(int r) { return r == 9 ? "Driver Not Loaded" : r == 15 ? "GPU is lost" : r == 6 ? "Not Found" : r == 7 ? "Insufficient Size" : "Some Error"; }

int nvmlInit_v2(void) {
#ifdef NODRIVER
    return 9;
#else
    users++;
    return 0;
#endif
}
int nvmlShutdown(void) { return users-- > 0 ? 0 : 1; }
static int say(char *to, unsigned n, const char *what) { return (unsigned)snprintf(to, n, "%s", what) < n ? 0 : 7; }
int nvmlSystemGetDriverVersion(char *v, unsigned n) { return say(v, n, "550.54.15"); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device *d) {
    if (strcmp(bus, "0000:3b:00.0") == 0) *d = &cards[0];
    else if (strcmp(bus, "0001:af:1f.0") == 0) *d = &cards[1];
    else return 6;
    return 0;
}
int nvmlDeviceGetName(device d, char *s, unsigned n) { return say(s, n, d->n == 0 ? "Card A" : "Card B"); }
int nvmlDeviceGetUUID(device d, char *s, unsigned n) { return say(s, n, d->n == 0 ? "GPU-a" : "GPU-b"); }

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char address[32];
} pci;
int nvmlDeviceGetPciInfo_v3(device d, pci *p) {
    *p = (pci){.domain = (unsigned)d->n, .bus = d->n ? 0xaf : 0x3b, .device = d->n ? 0x1f : 0};
    return 0;
}
typedef struct { unsigned long long total, free, used; } memory;
int nvmlDeviceGetMemoryInfo(device d, memory *m) {
#ifdef LOST
    return 15;
#endif
    *m = (memory){(unsigned long long)(d->n + 1) << 34, 1ull << 33, 5};
    return 0;
}

#ifndef OLD
int nvmlDeviceGetBAR1MemoryInfo(device d, memory *m) { TELL((*m = (memory){256ull << 20, 255ull << 20, 1ull << 20}, (void)d)); }
int nvmlDeviceGetClockInfo(device d, int type, unsigned *mhz) { TELL(*mhz = (unsigned)(1000 * type + d->n)); }
int nvmlDeviceGetMaxClockInfo(device d, int type, unsigned *mhz) { TELL(*mhz = (unsigned)(1900 + 10 * type + d->n)); }
int nvmlDeviceGetTemperature(device d, int sensor, unsigned *t) { TELL(*t = (unsigned)(41 + sensor + d->n)); }
int nvmlDeviceGetPowerUsage(device d, unsigned *mw) { TELL(*mw = 71500u + (unsigned)d->n); }
int nvmlDeviceGetCurrentClocksThrottleReasons(device d, unsigned long long *why) { TELL(*why = d->n ? 0x44 : 0x1); }
int nvmlDeviceGetPersistenceMode(device d, int *on) { TELL(*on = d->n); }
int nvmlDeviceGetCurrPcieLinkGeneration(device d, unsigned *g) { TELL(*g = d->n ? 4 : 1); }
int nvmlDeviceGetCurrPcieLinkWidth(device d, unsigned *w) { TELL(*w = d->n ? 8 : 16); }
int nvmlDeviceGetMaxPcieLinkGeneration(device d, unsigned *g) { TELL((*g = 5, (void)d)); }
int nvmlDeviceGetMaxPcieLinkWidth(device d, unsigned *w) { TELL((*w = 16, (void)d)); }
int nvmlDeviceGetUtilizationRates(device d, unsigned *use) { TELL((use[0] = 12u + (unsigned)d->n, use[1] = 34)); }
#endif
