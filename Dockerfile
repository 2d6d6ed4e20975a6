# One image for everything: operator, CSI driver, target nodes, kubectl-gemel.
#
#   docker build -t gemel .                                       from source
#   docker build --target local --build-arg BASE=… -t gemel DIR   from binaries in DIR, on a base that has the packages below; needs
#                                                                 no registry (hack/kind/gemel-image.sh)
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS local
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY * /usr/local/bin/

FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
ARG TARGETOS TARGETARCH VERSION=dev
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -o /out/ -ldflags "-s -w \
    -X github.com/gemel-storage/gemel/dataplane/node.Version=$VERSION -X github.com/gemel-storage/gemel/csi/app.Version=$VERSION \
    -X github.com/gemel-storage/gemel/controllers/app.Version=$VERSION -X github.com/gemel-storage/gemel/controllers/kubectlgemel.Version=$VERSION" ./cmd/...

FROM debian:bookworm-slim AS gemel
# What the node plugin and its holders run: mkfs, blkid, growing, mount. The operator and the driver's controller run as any user.
RUN apt-get update && apt-get install -y --no-install-recommends xfsprogs e2fsprogs util-linux mount fuse3 ca-certificates && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/ /usr/local/bin/
