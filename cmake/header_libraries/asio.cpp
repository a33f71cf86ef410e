// Boost.Asio, compiled once (fmt.cpp says why). Nothing here uses its part for OpenSSL.
#include <boost/asio/impl/src.hpp>
