// Package nvml reads the state of NVIDIA cards through NVML: clocks, temperature, power, PCIe link,
// BAR1. The library comes with NVIDIA's driver and is found at run time; nothing here needs a
// header or a toolkit, and no right beyond that of using the card. [Load] finds it,
// [Library.Device] a card by its PCI address, as package internal/cuda and sysfs write it.
//
// What a card does not tell is not an error but a field that is missing: see [Status].
//
// Source of names, values and layouts: NVIDIA, "NVML API" reference guide.
package nvml
