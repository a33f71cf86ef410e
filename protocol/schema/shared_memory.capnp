@0xd1a7c1f0a5e2b303;
# What a client on the server's own machine says about memory that both processes have mapped.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpuwire::schema");

struct RegionShare {
  # A host region of pages that both sides have: there is nothing to bring together, and no RegionChange is about it. RegionDestroy ends it.
  address @0 :UInt64;           # of the client, on a page's boundary
  bytes @1 :UInt64;
  descriptor @2 :UInt64;        # the number of a descriptor that came beside the stream: of a memfd of at least as many pages, sealed against being resized.
                                # CUDA_ERROR_NOT_FOUND: none of this number has come (it was lost with its connection)
}
