/* Devices: what they say of themselves. Driver API manual, "Device Management". */
#include <stdio.h>
#include <string.h>

#include "state.h"

#define DEVICE(fn, dev) \
    call c; \
    CUresult r = begin(&c, F_##fn, NEEDS_INIT); \
    if (r != CUDA_SUCCESS) return end(&c, r); \
    device *d = device_of(dev); \
    if (d == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_DEVICE, "device %d of %d", dev, G.ndevices))

#define NOT_NULL(p) \
    if ((p) == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%s is NULL", #p))

CUresult cuDeviceGet(CUdevice *dev, int ordinal) {
    DEVICE(cuDeviceGet, ordinal);
    NOT_NULL(dev);
    *dev = d->ordinal;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuDeviceGetCount(int *count) {
    call c;
    CUresult r = begin(&c, F_cuDeviceGetCount, NEEDS_INIT);
    if (r != CUDA_SUCCESS) return end(&c, r);
    NOT_NULL(count);
    *count = G.ndevices;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev) {
    DEVICE(cuDeviceGetName, dev);
    NOT_NULL(name);
    if (len <= 0) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "room for %d bytes", len));
    snprintf(name, (size_t)len, "%s %d", G.name, d->ordinal);
    return end(&c, CUDA_SUCCESS);
}

static CUresult uuid_of(const call *c, CUuuid *uuid, const device *d) {
    if (uuid == NULL) return bad(c, CUDA_ERROR_INVALID_VALUE, "uuid is NULL");
    memcpy(uuid->bytes, "penstock-fake-0", 16);
    uuid->bytes[15] = (char)('0' + d->ordinal);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) {
    DEVICE(cuDeviceGetUuid, dev);
    return end(&c, uuid_of(&c, uuid, d));
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) {
    DEVICE(cuDeviceGetUuid_v2, dev);
    return end(&c, uuid_of(&c, uuid, d));
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
    DEVICE(cuDeviceTotalMem_v2, dev);
    NOT_NULL(bytes);
    *bytes = d->total;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev) {
    DEVICE(cuDeviceGetAttribute, dev);
    NOT_NULL(pi);
    int a = (int)attrib;
    if (a <= 0 || a >= CU_DEVICE_ATTRIBUTE_MAX) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "attribute %d", a));
    *pi = d->attr[a];
    return end(&c, CUDA_SUCCESS);
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev) {
    DEVICE(cuDeviceComputeCapability, dev);
    NOT_NULL(major);
    NOT_NULL(minor);
    *major = d->attr[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
    *minor = d->attr[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
    return end(&c, CUDA_SUCCESS);
}

static void bus_id(const device *d, char *buf, size_t n) {
    snprintf(buf, n, "%04X:%02X:%02X.0", (unsigned)d->attr[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] & 0xffff,
             (unsigned)d->attr[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] & 0xff, (unsigned)d->attr[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID] & 0xff);
}

CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev) {
    DEVICE(cuDeviceGetPCIBusId, dev);
    NOT_NULL(id);
    if (len < 13) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "room for %d bytes, needs 13", len));
    bus_id(d, id, (size_t)len);
    return end(&c, CUDA_SUCCESS);
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *id) {
    call c;
    CUresult r = begin(&c, F_cuDeviceGetByPCIBusId, NEEDS_INIT);
    if (r != CUDA_SUCCESS) return end(&c, r);
    NOT_NULL(dev);
    NOT_NULL(id);
    unsigned domain, bus, device, function;
    if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "\"%s\" is not domain:bus:device.function", id));
    for (int i = 0; i < G.ndevices; i++)
        if (domain == (unsigned)G.dev[i].attr[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] &&
            bus == (unsigned)G.dev[i].attr[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] &&
            device == (unsigned)G.dev[i].attr[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID]) {
            *dev = i;
            return end(&c, CUDA_SUCCESS);
        }
    return end(&c, CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer) {
    DEVICE(cuDeviceCanAccessPeer, dev);
    NOT_NULL(can);
    device *p = device_of(peer);
    if (p == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_DEVICE, "device %d of %d", peer, G.ndevices));
    *can = p != d && !G.peers_off;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice src, CUdevice dst) {
    DEVICE(cuDeviceGetP2PAttribute, src);
    NOT_NULL(value);
    device *p = device_of(dst);
    if (p == NULL || p == d) return end(&c, bad(&c, CUDA_ERROR_INVALID_DEVICE, "from device %d to %d", src, dst));
    switch ((int)attrib) {
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED: *value = !G.peers_off; break;
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED: *value = 0; break;
    default: return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "attribute %d", (int)attrib));
    }
    return end(&c, CUDA_SUCCESS);
}
