#pragma once
namespace gpuwire::software_device {
struct Graph {};
struct GraphNode {};
struct GraphExec {};
}
