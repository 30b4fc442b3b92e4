"""What the project promises about parameters, optimizer state, buffers and determinism, sentence by sentence, and which
test holds it to each. A test that is renamed or removed is missed here; those that had no better home are below."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

import hogwild
from hogwild.training.autograd_update import AutogradUpdate
from tests.shared_model import (
    Branches,
    ConvNet,
    attach,
    build,
    images,
    one_thread,  # noqa: F401 (a fixture for every test here)
    side_by_side,
    train,
    updating,
    vectors,
)

TESTS = Path(__file__).resolve().parents[1]

STATEMENTS = {
    # ---- parameters
    "one flat shared tensor per dtype, each group one contiguous span, every parameter a view": """
        shared_model.there_is_one_flat_per_dtype_and_every_parameter_is_a_view
        shared_model.each_group_is_one_contiguous_span_and_frozen_parameters_have_their_own
        exactness_models.a_flat_for_each_dtype_gives_the_same_bits""",
    "model.share_memory() is still called and keeps the views": """
        shared_model.share_memory_called_again_keeps_the_views
        card.share_memory_is_called_in_the_parent""",
    "four hundred parameters cost a few open files": "shared_model.four_hundred_parameters_cost_a_few_descriptors",
    "a view has the strides of the parameter's own memory format, its gradient and state too": """
        shared_model.convolutions_are_channels_last_in_parameters_and_gradients
        state_layout.tensor_state_lies_in_the_region_and_keeps_the_parameters_strides
        exactness_models.a_convolution_gives_the_bits_of_the_plain_loop_in_its_memory_format""",
    "parameters are rebound by .data, so tied weights and an RNN's flat weights stay what they are": """
        structure_file.tied_weights_are_one_object_in_model_and_optimizer
        structure_file.an_lstm_trains_through_its_flat_weights
        exactness_models.tied_weights_stay_tied_and_train_as_one
        exactness_models.a_recurrent_module_trains_through_its_flat_weights""",
    "memory_format auto is channels_last when the model has a Conv2d": """
        shared_model.the_memory_format_can_be_chosen
        shared_model.without_a_convolution_the_format_stays
        exactness_models.a_convolution_that_is_told_to_stay_contiguous_does""",
    # ---- gradients and updates
    "dense gradients are views of one private flat": """
        exactness_statements.dense_gradients_are_views_of_one_private_flat""",
    "one operation over the flat, where every parameter got a dense gradient": """
        autograd_update.the_flat_rule_runs_once_the_state_exists
        autograd_update.parameters_unused_in_some_batches_are_left_alone_as_in_stock""",
    "the flat gives the bits of stock torch, or as many ulps as a fused kernel differs": """
        exactness.hundreds_of_updates_give_the_bits_of_the_plain_loop
        exactness.twenty_updates_of_a_fused_kernel_stay_within_20_ulps
        exactness.twenty_updates_that_are_clipped_stay_within_20_ulps
        exactness.a_schedule_gives_every_update_its_own_rate_to_the_bit
        exactness_workers.a_worker_process_gives_the_bits_of_the_plain_loop""",
    "anything else runs the user's optimizer on the parameters, as stock torch": """
        autograd_update.the_path_says_which_way_and_why
        autograd_update.step_hooks_of_the_user_run
        exactness_models.a_rule_that_is_not_elementwise_behaves_as_stock""",
    "unused gradients are None then": """
        exactness_statements.a_rule_sees_no_gradient_where_stock_torch_has_none
        exactness_models.parameters_that_some_batches_do_not_use_are_left_alone_by_these
        exactness_models.frozen_unused_and_foreign_parameters_keep_their_bits_and_the_rest_trains""",
    "parameters with sparse gradients lie outside the gradient flat": """
        autograd_update.a_sparse_gradient_has_no_room_in_the_gradient_flat
        exactness_models.a_sparse_embedding_beside_dense_layers_gives_the_same_bits
        exactness_models.rules_with_a_root_over_sparse_rows_stay_within_20_ulps""",
    "rules with a closure are refused": """
        shared_model.a_rule_with_a_closure_is_refused
        exactness_models.lbfgs_is_refused_and_the_model_is_as_it_was""",
    "after an apply through the flat autograd's in-place check still works": """
        autograd_update.autograd_notices_a_write_through_the_flat""",
    # ---- optimizer state
    "shared state lies in shared memory under torch's own names": """
        state_layout.shared_state_is_everybodys
        exactness_statements.state_has_torchs_own_names_types_and_shapes
        exactness.state_that_only_one_worker_shares_gives_the_bits_of_the_plain_loop""",
    "a replacement inherits the private state of the dead": """
        state_layout.a_replacement_goes_on_with_the_state_of_the_dead
        exactness_workers.a_worker_killed_between_updates_and_replaced_changes_no_bit""",
    "with other procs worker k takes region k mod old procs, and the log says so": """
        shared_model.other_procs_take_regions_in_turn_and_the_log_hears_of_it""",
    "a checkpoint's optimizer entry is a stock state_dict that loads into the stock optimizer": """
        exactness_workers.the_stock_optimizer_loads_a_checkpoints_entry_and_goes_on_to_the_same_bits
        shared_model.the_state_of_the_first_worker_that_trained_stands_for_all""",
    "optimizer_private lists the state of every worker": """
        shared_model.a_snapshot_is_private_and_loads_into_stock_torch
        shared_model.a_worker_that_never_trained_has_no_state""",
    "the layout is learnt by one dry step on a copy": "state_layout.the_dry_step_leaves_everything_as_it_was",
    "the optimizer creates its state in its own first step, and only then it moves": """
        exactness_statements.there_is_no_state_before_the_first_step_and_then_it_lies_in_the_region
        autograd_update.twenty_updates_equal_the_plain_loop_to_the_bit""",
    # ---- buffers
    "every worker has its own copy of the buffers": "buffers.a_worker_writes_its_own_copy_only",
    "floating buffers become the weighted mean, integers the sum of increments": """
        buffers.floats_become_the_weighted_mean_and_integers_the_sum
        buffers.batchnorm_of_many_workers_settles_at_the_data""",
    "a buffer that no worker changed stays bit for bit": "buffers.what_nobody_changed_keeps_its_bits",
    "where only one worker trained, its copy is taken": """
        buffers.where_one_worker_trained_its_copy_is_taken
        exactness_models.batch_normalisation_keeps_the_running_averages_of_the_plain_loop""",
    # ---- structure and determinism
    "no worker runs a constructor's random initialisation again": "structure_file.no_constructor_runs_in_a_worker",
    "with one worker nothing that changes arithmetic is chosen by timing, and exchange is direct": """
        train.the_same_job_with_one_worker_gives_the_same_bits
        train.training_inside_the_parent_gives_the_bits_of_one_worker
        exactness_workers.a_worker_process_gives_the_bits_of_the_plain_loop""",
    "a batch's random numbers depend on no worker and on no incarnation": """
        exactness_statements.the_random_numbers_of_a_batch_are_the_same_whichever_worker_draws_them
        exactness_workers.a_worker_killed_between_updates_and_replaced_changes_no_bit""",
    "a resume may change procs, epochs and limits; anything else is an error naming both values": """
        resume.procs_and_epochs_may_change_and_the_records_go_on
        resume.what_may_not_change_is_refused_with_both_values
        resume.one_worker_interrupted_and_resumed_gives_the_bits_of_an_undisturbed_one""",
    "max_updates is exact": """
        train.max_updates_is_exact_with_three_workers_that_accumulate
        work_queue.a_limit_of_updates_is_leased_exactly""",
}


@pytest.mark.slow
@pytest.mark.parametrize("statement", STATEMENTS)
def test_every_statement_has_the_tests_that_are_named_for_it(statement: str) -> None:
    for name in STATEMENTS[statement].split():
        file, _, test = name.partition(".")
        (path,) = TESTS.rglob(f"test_{file}.py")
        assert f"test_{test}" in names_in(path), f"there is no test_{test} in {path.name}"


def names_in(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


# ---- those without a better home -------------------------------------------------------------------------------------


def test_dense_gradients_are_views_of_one_private_flat() -> None:
    worker = attach(build(model := ConvNet(), optim.SGD(model.parameters(), 0.1)))
    update = AutogradUpdate(worker, grad_clip=None)
    train(update, images(1))
    (x, y), (flat,) = images(1)[0], update._gradients.flats.values()
    update.backward((x,), y)
    first, last = flat.data_ptr(), flat.data_ptr() + flat.nbytes
    for param in worker.model.parameters():
        assert param.grad is not None
        assert first <= param.grad.data_ptr() < last
        assert param.grad.stride() == param.stride()
    assert not flat.is_shared()


class Witness(optim.SGD):
    """Notes for every step which parameters have no gradient."""

    def __init__(self, params: Iterator[nn.Parameter]) -> None:
        super().__init__(params, lr=0.1)
        self.seen: list[list[bool]] = []

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.seen.append([param.grad is None for group in self.param_groups for param in group["params"]])
        super().step(closure)


def test_a_rule_sees_no_gradient_where_stock_torch_has_none() -> None:
    stock: list[Witness] = []

    def rule(params: Iterator[nn.Parameter]) -> Witness:
        stock.append(Witness(params))
        return stock[-1]

    _, _, update = side_by_side(Branches, rule, vectors(24))
    ours = update._optimizer
    assert isinstance(ours, Witness)
    assert ours.seen == stock[-1].seen
    assert len({tuple(which) for which in ours.seen}) == 3, "left, right, both"


@pytest.mark.parametrize("state", ["private", "shared"])
@pytest.mark.parametrize("rule", [optim.Adam, optim.RMSprop, optim.Adagrad, optim.NAdam, optim.Adadelta])
def test_state_has_torchs_own_names_types_and_shapes(rule: type[optim.Optimizer], state: str) -> None:
    torch.manual_seed(0)
    ours, plain = ConvNet(), ConvNet()
    shared = build(ours, rule(ours.parameters()), state=state)
    train(updating(shared), images(2))
    stock = rule(plain.parameters())
    for param in plain.parameters():
        param.grad = torch.ones_like(param)
    stock.step()
    assert kinds(shared.snapshot()["optimizer"]["state"]) == kinds(stock.state_dict()["state"])


def kinds(state: dict[int, dict[str, object]]) -> dict[int, dict[str, object]]:
    return {
        number: {
            key: (value.dtype, tuple(value.shape)) if isinstance(value, Tensor) else type(value)
            for key, value in own.items()
        }
        for number, own in state.items()
    }


def test_there_is_no_state_before_the_first_step_and_then_it_lies_in_the_region() -> None:
    shared = build(model := ConvNet(), optim.Adam(model.parameters()))
    worker = attach(shared)
    update = AutogradUpdate(worker, grad_clip=None)
    assert not worker.optimizer.state
    train(update, images(1))
    held = [value for own in worker.optimizer.state.values() for value in own.values()]
    assert len(held) == 3 * 8 and all(value.is_shared() for value in held)


class Drawing(nn.Module):
    """Adds to row i what is drawn for sample i: every row belongs to one batch, so no two workers write one word."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.drawn = nn.Embedding(samples, 1, sparse=True)
        nn.init.zeros_(self.drawn.weight)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.drawn(numbers) * torch.rand(len(numbers), 1)


def minus_sum(output: Tensor, numbers: Tensor) -> Tensor:
    return -output.sum()


@pytest.mark.whole
@pytest.mark.processes
def test_the_random_numbers_of_a_batch_are_the_same_whichever_worker_draws_them(tmp_path: Path) -> None:
    numbers = torch.arange(1600)
    drawn = {}
    for procs in (0, 2):
        model = Drawing(len(numbers))
        hogwild.train(
            model,
            TensorDataset(numbers, numbers),
            minus_sum,
            optim.SGD(model.parameters(), lr=1.0),
            procs=procs,
            threads=1,
            batch_size=4,
            exchange="direct",
            run_dir=tmp_path / f"run-{procs}",
        )
        drawn[procs] = model.drawn.weight.detach()
    assert torch.equal(drawn[0], drawn[2])
    assert len(drawn[0].unique()) > 1500, "every sample its own"
