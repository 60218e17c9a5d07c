#include "server/transport/accept_again.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/no_more_files.h"
#include "tests/support/tcp.h"

namespace aft::server {
namespace {

// A listener whose events are reported as gRPC's are.
class AcceptAgainTest : public testing::Test {
 protected:
  AcceptAgainTest() {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_, any, size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, any, &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    EXPECT_EQ(epoll_ctl(epoll_, EPOLL_CTL_ADD, listener_, &event), 0);
  }
  ~AcceptAgainTest() override {
    close(epoll_);
    close(listener_);
  }

  // Returns the number of events, and waits for one for at most `timeout_ms`; -1: for as long as it
  // takes.
  int Events(int timeout_ms) const {
    epoll_event event = {};
    return epoll_wait(epoll_, &event, 1, timeout_ms);
  }

  const int listener_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const int epoll_ = epoll_create1(0);
  std::string address_;
};

TEST_F(AcceptAgainTest, AConnectionWithoutADescriptorIsReportedAgain) {
  const TcpConnection first(address_);
  ASSERT_EQ(Events(-1), 1);
  {
    const NoMoreFiles none;
    EXPECT_EQ(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC), -1);
    EXPECT_EQ(errno, EAGAIN);
  }
  EXPECT_EQ(Events(0), 0);
  EXPECT_EQ(AcceptAgain(), EMFILE);
  EXPECT_EQ(Events(-1), 1);
  EXPECT_EQ(AcceptAgain(), 0);
  EXPECT_EQ(Events(0), 0);
  const int accepted = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  EXPECT_GE(accepted, 0);
  close(accepted);
}

TEST_F(AcceptAgainTest, OtherErrorsAreLeftToTheCaller) {
  EXPECT_EQ(accept4(-1, nullptr, nullptr, 0), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(accept4(epoll_, nullptr, nullptr, 0), -1);
  EXPECT_EQ(errno, ENOTSOCK);
  EXPECT_EQ(accept4(listener_, nullptr, nullptr, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(AcceptAgain(), 0);
}

}  // namespace
}  // namespace aft::server
