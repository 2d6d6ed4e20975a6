// Package single serves LUNs with one replica: a file without a mirror (Medium), and the units of
// one process without a pair (Cluster). Benchmarks, conformance runs and tests of the device server
// use it as a baseline; no LUN of a pair does.
package single
