// Writes messages of clients, and replies, for tests in Python. An input line names a message and its fields; the
// output line is the message in hexadecimal. NAME [FIELD=VALUE]..., where bytes are hexadecimal.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <capnp/message.h>
#include <fmt/format.h>

#include "schema/handshake.capnp.h"
#include "schema/login.capnp.h"
#include "schema/session.capnp.h"

namespace {

using namespace gpuwire;
using Bytes = std::vector<capnp::byte>;

constexpr unsigned kSegmentWords = 1 << 16;  // a message is one segment

class Fields {
 public:
  explicit Fields(std::istringstream& line) {
    for (std::string word; line >> word;) {
      size_t at = word.find('=');
      if (at != std::string::npos) values_[word.substr(0, at)] = word.substr(at + 1);
    }
  }
  uint64_t number(const std::string& name) const {
    auto found = values_.find(name);
    return found == values_.end() ? 0 : std::stoull(found->second);
  }
  Bytes bytes(const std::string& name) const {
    Bytes out;
    auto found = values_.find(name);
    for (size_t at = 0; found != values_.end() && at + 1 < found->second.size(); at += 2)
      out.push_back(capnp::byte(std::stoul(found->second.substr(at, 2), nullptr, 16)));
    return out;
  }

 private:
  std::map<std::string, std::string> values_;
};

capnp::Data::Reader data(const Bytes& bytes) { return {bytes.data(), bytes.size()}; }

// False: there is no such message.
bool write(const std::string& name, const Fields& fields, capnp::MessageBuilder& message) {
  if (name == "login") {
    auto login = message.initRoot<schema::Login>();
    // Accepts any bytes, because the server has to detect invalid texts.
    const Bytes token = fields.bytes("token"), resume = fields.bytes("resume");
    if (!token.empty()) std::copy(token.begin(), token.end(), login.initToken(unsigned(token.size())).begin());
    if (!resume.empty()) login.setResume(data(resume));
  } else if (name == "resume_challenge") {
    message.initRoot<schema::ResumeChallenge>();
  } else if (name == "resume") {
    auto resume = message.initRoot<schema::Resume>();
    resume.setAttempt(fields.number("attempt"));
    resume.setReceived(fields.number("received"));
    resume.setProof(data(fields.bytes("proof")));
  } else if (name == "rdma_end") {
    auto end = message.initRoot<schema::Rdma>().initEnd();
    end.setVersion(uint32_t(fields.number("version")));
    end.setAddress(data(fields.bytes("address")));
    end.setToken(data(fields.bytes("token")));
  } else if (name == "rdma_use") {
    message.initRoot<schema::Rdma>().setUse();
  } else if (name == "hello") {
    message.initRoot<schema::Hello>();
  } else if (name == "management_query") {
    auto query = message.initRoot<schema::ManagementQuery>();
    query.setFunction(uint32_t(fields.number("function")));
    query.setArguments(data(fields.bytes("arguments")));
  } else if (name == "management_reply") {
    auto reply = message.initRoot<schema::ManagementReply>();
    reply.setStatus(int32_t(fields.number("status")));
    reply.setValues(data(fields.bytes("values")));
  } else {
    return false;
  }
  return true;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    capnp::MallocMessageBuilder message(kSegmentWords);
    if (!write(name, Fields(words), message)) {
      std::cerr << "there is no message " << name << "\n";
      return 2;
    }
    auto segment = message.getSegmentsForOutput()[0].asBytes();
    std::string text;
    for (capnp::byte byte : segment) text += fmt::format("{:02x}", byte);
    std::cout << text << std::endl;
  }
}
