// Boost.Asio's part for OpenSSL, compiled once, as cmake/header_libraries compiles the rest.
#include <boost/asio/ssl/impl/src.hpp>
