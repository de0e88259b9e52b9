"""How the false ComfyUI refuses a graph: the types, texts and keys of the recordings (cases 05 to 07)."""

from typing import Any

from tests.support.fake_comfyui_nodes import CLASSES, choices

Graph = dict[str, Any]
Files = dict[str, list[str]]


class Validation:
    """Checks a graph as the real one does: each output by itself, from it up its links."""

    def __init__(self, graph: Graph, files: Files, *, old: bool) -> None:
        self.graph, self.files, self.old = graph, files, old
        self.errors: dict[str, Any] = {}
        self.good: list[str] = []
        self._faults: dict[str, list[dict[str, Any]]] = {}

    def run(self, outputs: list[str]) -> dict[str, Any] | None:
        """Return the answer that refuses the graph; None if an output is left that can run."""
        details = []
        for output in outputs:
            try:
                fine = self._check(output, [])
            except (KeyError, IndexError) as error:
                fine = False
                extra = {"exception_type": type(error).__name__, "traceback": ["File ..."]}
                text = "Exception when validating node"
                self._faults[output] = [fault("exception_during_validation", text, str(error), extra)]
            if fine:
                self.good.append(output)
                continue
            details += [f"{found['message']}: {found['details']}" for found in self._faults.get(output, ())]
            for node, found in self._faults.items():  # all so far, whether this output depends on them or not
                class_type = self.graph[node]["class_type"]
                entry = {"errors": found, "dependent_outputs": [], "class_type": class_type}
                self.errors.setdefault(node, entry)["dependent_outputs"].append(output)
        if self.good:
            return None
        answer = refused("prompt_outputs_failed_validation", "Prompt outputs failed validation", "; ".join(details))
        return answer | {"node_errors": self.errors}

    def _check(self, node: str, path: list[str]) -> bool:
        """Check a node and all that it depends on."""
        if node in path:
            self._cycle(path[path.index(node) :])
            return False
        if node not in self._faults and (found := faults_of(self.graph, node, self.files)):
            self._faults[node] = found
        fine = node not in self._faults
        for name, value in self.graph[node]["inputs"].items():
            if isinstance(value, list) and len(value) == 2 and value[0] in self.graph:
                fine &= self._check_linked(value, name, [*path, node])
        return fine

    def _check_linked(self, link: list[Any], name: str, path: list[str]) -> bool:
        try:
            return self._check(link[0], path)
        except (KeyError, IndexError) as error:
            extra = {"input_name": name, "input_config": ["IMAGE", {}], "exception_message": str(error)}
            extra |= {"exception_type": type(error).__name__, "traceback": ["File ..."], "linked_node": link}
            text = "Exception when validating inner node"
            self._faults[link[0]] = [fault("exception_during_inner_validation", text, str(error), extra)]
            return False

    def _cycle(self, nodes: list[str]) -> None:
        text = " -> ".join(f"{node} ({self.graph[node]['class_type']})" for node in [*nodes, nodes[0]])
        for node in () if self.old else nodes:
            extra = {"node_id": node, "cycle_nodes": nodes}
            self._faults[node] = [fault("dependency_cycle", "Dependency cycle detected", text, extra)]


def class_fault(node_id: str, node: dict[str, Any], absent: set[str], *, old: bool) -> dict[str, Any] | None:
    """Return the answer that refuses a node whose class is missing; None: it is there."""
    name = node.get("class_type")
    if name in CLASSES and name not in absent:
        return None
    details = f"Node ID '#{node_id}'"
    if old:
        why = f"node {name} does not exist." if name else "a node is missing the class_type property."
        return refused("invalid_prompt", f"Cannot execute because {why}", details)
    title = node.get("_meta", {}).get("title") or name
    text = f"Node '{title}' not found. The custom node may not be installed."
    if name is None:
        text = f"Node 'ID #{node_id}' has no class_type. The workflow may be corrupted or a custom node is missing."
    answer = refused("missing_node_type", text, details)
    answer["error"]["extra_info"] = {"node_id": node_id, "class_type": name, "node_title": title}
    return answer


def refused(kind: str, message: str, details: str) -> dict[str, Any]:
    error = {"type": kind, "message": message, "details": details, "extra_info": {}}
    return {"error": error, "node_errors": {}}


def fault(kind: str, message: str, details: str, extra: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "message": message, "details": details, "extra_info": extra}


def faults_of(graph: Graph, node_id: str, files: Files) -> list[dict[str, Any]]:
    """Return the errors of one node's own inputs; KeyError and IndexError for links into nothing."""
    node = graph[node_id]
    found = []
    for name, kind in CLASSES[node["class_type"]][0].items():
        if name not in node["inputs"]:
            found.append(fault("required_input_missing", "Required input is missing", name, {"input_name": name}))
            continue
        found += _value_faults(graph, name, kind, node["inputs"][name], files)
    return found


def _value_faults(graph: Graph, name: str, kind: Any, value: Any, files: Files) -> list[dict[str, Any]]:
    options = choices(files, kind)
    config = [options, {}] if options is not None else [kind[0], {}]
    extra = {"input_name": name, "input_config": config, "received_value": value}
    if isinstance(value, list):
        if len(value) != 2:
            text = "Bad linked input, must be a length-2 list of [node_id, slot_index]"
            return [fault("bad_linked_input", text, name, extra)]
        made = CLASSES[graph[value[0]]["class_type"]][1][value[1]]
        if options is None and made != kind[0]:
            details = f"{name}, received_type({made}) mismatch input_type({kind[0]})"
            about = {"input_name": name, "input_config": config, "received_type": made, "linked_node": value}
            return [fault("return_type_mismatch", "Return type mismatch between linked nodes", details, about)]
        return []
    if kind == "input":
        if value in (options or []):
            return []
        details = f"{name} - Invalid image file: {value}"
        return [fault("custom_validation_failed", "Custom validation failed for node", details, {"input_name": name})]
    if options is not None:
        if value in options:
            return []
        return [fault("value_not_in_list", "Value not in list", f"{name}: {value!r} not in {options!r}", extra)]
    return _number_faults(name, kind, value, extra) if kind[0] in ("INT", "FLOAT") else []


def _number_faults(name: str, kind: Any, value: Any, extra: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        number = int(value) if kind[0] == "INT" else float(value)
    except (TypeError, ValueError) as error:
        text = f"Failed to convert an input value to a {kind[0]} value"
        more = extra | {"exception_message": str(error)}
        return [fault("invalid_input_type", text, f"{name}, {value}, {error}", more)]
    if number < kind[1]:
        return [fault("value_smaller_than_min", f"Value {number} smaller than min of {kind[1]}", name, extra)]
    if number > kind[2]:
        return [fault("value_bigger_than_max", f"Value {number} bigger than max of {kind[2]}", name, extra)]
    return []
