# shellcheck shell=bash disable=SC2034
# What the lab is made of, besides the modules whose go.mod names their versions (hyperkube, coredns, crictl, csi). Source it.
KIND_VERSION=v0.33.0
CONTAINERD_VERSION=v2.3.7
CNI_VERSION=v1.9.1
HELM_VERSION=v3.22.0
PAUSE_VERSION=3.10.2
CLUSTER=gemel
