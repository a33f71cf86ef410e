// The headers that both ends of a session read: CUDA's header, Cap'n Proto and the session's own messages.
#pragma once

#include "cmake/precompiled/standard.hpp"

#include <capnp/generated-header-support.h>
#include <capnp/message.h>
#include <cuda.h>

#include "schema/session.capnp.h"
#include "wire/session_messages.hpp"
